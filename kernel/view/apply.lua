#!lua
-- Applies one batch to a shard, or nothing of it.
--
-- Guards that a zombie owner changes nothing (the token), that no batch is applied to a view it was not folded from
-- (the expected watermark), and that a script which fails half-way is known (`dirty`): a script is not rolled back.
-- `dirty` is set before anything else. That write is also the one that the server refuses when it has no room, so
-- a lack of memory is met before the first change. The same batch may be sent again after a half-way failure,
-- because every value is absolute; lease expiry alone is counted from now.
--
-- KEYS: owner, watermark, dirty, rebuilding, floor.
-- ARGV: token, expected watermark, new watermark, '1' while readers have to wait; the number of executions that the
-- batch changes, and for each the key of its hash and how many fields it has to have; then commands, each as name, key,
-- number of arguments, arguments. Two names are ours: `SOON` is ZADD with pairs of (ms from now, member), `PAST`
-- removes the members whose time is over.
-- Returns 1 when applied, now or before; 0 when another owns the shard; -1 when the view is not what was expected;
-- -2 when an execution has other fields than it was folded from, and nothing was changed.
local owner, watermark, dirty, rebuilding, floor = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, expected, new = ARGV[1], ARGV[2], ARGV[3]
-- Even, so that pairs stay together; well below the 8000 that Lua's stack can unpack.
local CHUNK = 4000

if redis.call('GET', owner) ~= token then
  return 0
end
local found, torn = redis.call('GET', watermark), redis.call('GET', dirty)
if found == new and new ~= expected and not torn then
  -- The answer to an earlier sending was lost.
  return 1
end
if found ~= expected or (torn and torn ~= new) then
  -- The view went backwards under a living owner, and with it what leases were renewed to. Without an owner's name
  -- the next one takes this one for dead and raises the lease floor.
  redis.call('DEL', owner)
  return -1
end

local at, total = 6, #ARGV
local sizes_end = at + 2 * ARGV[5]
if not torn then
  while at < sizes_end do
    if redis.call('HLEN', ARGV[at]) ~= tonumber(ARGV[at + 1]) then
      return -2
    end
    at = at + 2
  end
end
at = sizes_end

redis.call('SET', dirty, new)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
while at <= total do
  local name, key = ARGV[at], ARGV[at + 1]
  local first = at + 3
  local last = at + 2 + ARGV[at + 2]
  if name == 'SOON' then
    for from = first, last, CHUNK do
      local pairs_in = {unpack(ARGV, from, math.min(from + CHUNK - 1, last))}
      for i = 1, #pairs_in, 2 do
        pairs_in[i] = now + pairs_in[i]
      end
      redis.call('ZADD', key, unpack(pairs_in))
    end
  elseif name == 'PAST' then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  elseif first > last then
    redis.call(name, key)
  else
    for from = first, last, CHUNK do
      redis.call(name, key, unpack(ARGV, from, math.min(from + CHUNK - 1, last)))
    end
  end
  at = last + 1
end

if ARGV[4] == '1' then
  redis.call('SET', rebuilding, 0, 'NX')
else
  local lease_ms = redis.call('GET', rebuilding)
  if lease_ms then
    -- Leases were armed at some time during the rebuild, and agents could not renew them in the view until now.
    redis.call('SET', floor, math.max(tonumber(redis.call('GET', floor) or 0), now + lease_ms))
    redis.call('DEL', rebuilding)
  end
end
redis.call('SET', watermark, new)
redis.call('DEL', dirty)
return 1
