#!lua flags=allow-oom
-- Gives held items back, due again after a delay.
--
-- Guards that only what is still held moves: a duty that was armed anew since it was taken keeps its new time, and one
-- that is gone does not come back.
--
-- KEYS: due. ARGV: delay in ms, items.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 2, #ARGV do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if score and score % 1 ~= 0 then
    redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[i])
  end
end
return 1
