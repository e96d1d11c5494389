#!lua flags=allow-oom
-- Drops some keys of a shard that is being wiped. Guards that a former owner drops nothing of its successor's.
--
-- KEYS: owner, then the keys to drop. ARGV: token.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('UNLINK', unpack(KEYS, 2))
return 1
