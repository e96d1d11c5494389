#!lua flags=no-writes
-- Reads one step of a list of approvals: {watermark, rebuilding, dirty, member, record, member, record, ...}, oldest
-- first.
--
-- Guards that members and records are of one moment, so that a member without a record is damage and nothing else.
--
-- KEYS: watermark, rebuilding, dirty, index. ARGV: lowest, highest, number of members, prefix of the hashes.
local function field_of(approval_id)
  local hex = string.gsub(approval_id, '-', '')
  return 'a' .. string.gsub(hex, '%x%x', function(digits)
    return string.char(tonumber(digits, 16))
  end)
end

local answer = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[4], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
  local approval_id, execution_id = string.match(member, '^([^/]+)/([^/]+)/')
  answer[#answer + 1] = member
  answer[#answer + 1] = redis.call('HGET', ARGV[4] .. execution_id, field_of(approval_id))
end
return answer
