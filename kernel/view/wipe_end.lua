#!lua flags=allow-oom
-- Ends a wipe: the shard is empty, and says so by an empty watermark.
--
-- Guards that the watermark appears only when nothing of the old view is left.
--
-- KEYS: owner, watermark, dirty, floor. ARGV: token, the empty watermark, lease in ms.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', KEYS[4], math.max(tonumber(redis.call('GET', KEYS[4]) or 0), now + ARGV[3]))
redis.call('SET', KEYS[2], ARGV[2])
redis.call('DEL', KEYS[3])
return 1
