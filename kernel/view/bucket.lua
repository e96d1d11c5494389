#!lua flags=allow-oom
-- Takes tokens from a bucket, as many as there are up to a number, or gives one back. A bucket is full at first and
-- refills without steps.
--
-- A token is as many parts as the window has milliseconds, so all is whole. A bucket that nobody touched for a window
-- is full and forgotten. The same bucket is never asked for with other terms: they are part of its name.
--
-- KEYS: bucket. ARGV: tokens it holds, window in ms, tokens to take or -1 to give one back. Returns how many were taken.
local calls, window, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local full = calls * window
local parts, at = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+)/(%d+)$')
local held = full
if parts then
  held = math.min(full, parts + math.max(0, now - at) * calls)
end
local taken = math.min(wanted, math.floor(held / window))
if taken == 0 then
  return 0
end
held = math.min(full, held - taken * window)
redis.call('SET', KEYS[1], string.format('%.0f/%.0f', held, now), 'PX', window)
return taken
