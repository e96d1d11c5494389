#!lua flags=allow-oom
-- Takes a free shard for a time and returns the token that fences it; false while another has it.
--
-- Guards that one token at a time is good, and that no token is ever made twice: the epoch alone starts anew when
-- the server loses its data, the nonce does not. An owner that gave the shard back left '-'. Where nothing is left
-- the owner died (or all was lost): what it did not fold may have been heartbeats, so no lease expires before
-- another lease has passed.
--
-- KEYS: owner, epoch, floor. ARGV: name of the owner, nonce, ttl in ms, lease in ms.
local owner, epoch, floor = KEYS[1], KEYS[2], KEYS[3]
local found = redis.call('GET', owner)
if found and found ~= '-' then
  return false
end
if not found then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('SET', floor, math.max(tonumber(redis.call('GET', floor) or 0), now + ARGV[4]))
end
local token = ARGV[1] .. '/' .. redis.call('INCR', epoch) .. '/' .. ARGV[2]
redis.call('SET', owner, token, 'PX', ARGV[3])
return token
