#!lua flags=no-writes
-- Reads what the fold of a batch needs, at one moment and in one reply: for every execution the fields asked for,
-- the length of its hash, and its place in the directory. A pipeline would cost the reader a reply each.
--
-- KEYS: watermark (it names the slot). ARGV: per execution: hash, directory, directory field, number of fields, fields.
local CHUNK = 4000
local answer = {}
local at, total = 1, #ARGV
while at <= total do
  local key = ARGV[at]
  local first = at + 4
  local last = at + 3 + ARGV[at + 3]
  local values
  if first > last then
    values = {}
  elseif last - first < CHUNK then
    values = redis.call('HMGET', key, unpack(ARGV, first, last))
  else
    values = {}
    for from = first, last, CHUNK do
      for _, value in ipairs(redis.call('HMGET', key, unpack(ARGV, from, math.min(from + CHUNK - 1, last)))) do
        values[#values + 1] = value
      end
    end
  end
  answer[#answer + 1] = values
  answer[#answer + 1] = redis.call('HLEN', key)
  answer[#answer + 1] = redis.call('HGET', ARGV[at + 1], ARGV[at + 2])
  at = last + 1
end
return answer
