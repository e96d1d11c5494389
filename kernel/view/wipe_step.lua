#!lua flags=allow-oom
-- Looks at some of the server's keys and drops those of a shard that is being wiped; returns where to go on, '0' at
-- the end, or false when the token is not the present one.
--
-- Guards that a former owner drops nothing of its successor's. A step also lengthens the fence where that is about
-- to run out: a wipe looks at every key of the server, which may take longer than an ownership lasts.
--
-- KEYS: owner. ARGV: token, hold in ms, cursor, pattern, number of keys, keys to leave alone.
-- Well below the 8000 that Lua's stack can unpack; a step may find more than it was asked for.
local CHUNK = 4000

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
local lasting, doomed = {}, {}
for i = 6, #ARGV do
  lasting[ARGV[i]] = true
end
local found = redis.call('SCAN', ARGV[3], 'MATCH', ARGV[4], 'COUNT', ARGV[5])
for _, key in ipairs(found[2]) do
  if not lasting[key] then
    doomed[#doomed + 1] = key
  end
end
for from = 1, #doomed, CHUNK do
  redis.call('UNLINK', unpack(doomed, from, math.min(from + CHUNK - 1, #doomed)))
end
return found[1]
