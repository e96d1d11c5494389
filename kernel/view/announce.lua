#!lua flags=allow-oom
-- Says that a projector lives for a while, forgets the ones whose time is over, and returns how many live.
--
-- KEYS: projectors. ARGV: name, ttl in ms.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return redis.call('ZCARD', KEYS[1])
