#!lua flags=no-writes
-- Reads one step of a list: {watermark, rebuilding, dirty, id, header, id, header, ...}, newest first.
--
-- Guards that ids and headers are of one moment, so that an id without a header is damage and nothing else.
--
-- KEYS: watermark, rebuilding, dirty, index. ARGV: highest, lowest, number of ids, prefix of the hashes.
local answer = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
for _, id in ipairs(redis.call('ZREVRANGEBYLEX', KEYS[4], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
  answer[#answer + 1] = id
  answer[#answer + 1] = redis.call('HGET', ARGV[4] .. id, 'h')
end
return answer
