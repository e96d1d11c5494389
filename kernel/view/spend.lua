#!lua flags=allow-oom
-- Takes a portion of what may be spent until the counter is forgotten: all that is wanted, or what is left of it where
-- that is enough to be of use.
--
-- KEYS: counter. ARGV: limit, wanted, least of use, ms after which the counter is forgotten. Returns what was taken.
local limit, wanted, least = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local spent = tonumber(redis.call('GET', KEYS[1]) or '0')
local taken = math.min(wanted, limit - spent)
if taken < least then
  return 0
end
redis.call('SET', KEYS[1], string.format('%.0f', spent + taken), 'PX', ARGV[4])
return taken
