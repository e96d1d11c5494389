#!lua flags=allow-oom
-- Renews an ownership and returns {watermark, dirty, rebuilding}; false when the token is not the present one.
--
-- Guards that an ownership which lapsed stays lost, even where nobody took the shard meanwhile.
--
-- KEYS: owner, watermark, dirty, rebuilding. ARGV: token, ttl in ms.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('MGET', KEYS[2], KEYS[3], KEYS[4])
