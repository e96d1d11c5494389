#!lua flags=allow-oom
-- Gives a shard back, if the token is the present one: a lapsed owner must not free another's shard.
--
-- KEYS: owner. ARGV: token.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], '-')
return 1
