#!lua flags=allow-oom
-- Says that a door lives, and remembers when the last silence of all doors ended: a poll may have missed it.
--
-- KEYS: doors. ARGV: longest silence in ms.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local beat_at, silent_until = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+)/(%d+)$')
if not beat_at or now - beat_at > tonumber(ARGV[1]) then
  silent_until = now
end
redis.call('SET', KEYS[1], string.format('%.0f/%.0f', now, silent_until))
return 1
