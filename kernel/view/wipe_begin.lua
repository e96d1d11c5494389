#!lua flags=allow-oom
-- Begins to drop a shard: readers wait from now on, and there is no watermark until all is dropped.
--
-- Guards that a wipe which ends half-way is begun anew by the next owner, who finds no watermark.
--
-- KEYS: owner, watermark, rebuilding, floor. ARGV: token, lease in ms.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[3], ARGV[2])
redis.call('SET', KEYS[4], math.max(tonumber(redis.call('GET', KEYS[4]) or 0), now + ARGV[2]))
return 1
