#!lua flags=allow-oom
-- Takes one of the slots that bound an agent's open webhook calls; who has one already keeps it anew.
--
-- Guards that no more are held than the limit, whichever dispatcher asks and whatever limit the holders were let in
-- under. A slot ends by itself, so one whose dispatcher died is free again. A dispatcher that allows calls a longer
-- time may share the set with others, so its key lives as long as the last slot in it.
--
-- KEYS: slots. ARGV: holder, limit, hold in ms. Returns 1, or 0 where none is free.
local slots, holder, hold_ms = KEYS[1], ARGV[1], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
if not redis.call('ZSCORE', slots, holder) and redis.call('ZCARD', slots) >= tonumber(ARGV[2]) then
  return 0
end
redis.call('ZADD', slots, now + hold_ms, holder)
if redis.call('PTTL', slots) < hold_ms then
  redis.call('PEXPIRE', slots, hold_ms)
end
return 1
