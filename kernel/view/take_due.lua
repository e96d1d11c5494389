#!lua flags=allow-oom
-- Gives due work to one dispatcher and holds it, so that no other is given it for a while.
--
-- Guards four things. Half a millisecond in the score says that an item is held: whoever arms the duty anew writes
-- whole milliseconds, so `defer` can tell a held item from a new duty. A lease below the floor is not given but
-- moved there. A lease that is given is marked, so that a heartbeat from now on is judged by the log, as its expiry
-- is. And an outage of ours raises the floor first: doors or dispatchers that were silent, or a floor that was lost.
-- Nothing is given while the view is rebuilt, torn or lost, because its leases are not the true ones.
--
-- KEYS: due, marks, floor, doors, polled, rebuilding, dirty, watermark.
-- ARGV: number of items, hold in ms, lease in ms, longest silence in ms, prefix of the hashes.
-- Returns {ms until the next item is due or -1, member, header, member, header, ...}.
local due, marks, floor_key, doors, polled = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local hold_ms, lease_ms, silence_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local floor = tonumber(redis.call('GET', floor_key) or '')
local polled_at = tonumber(redis.call('GET', polled) or '')
local beat_at, silent_until = string.match(redis.call('GET', doors) or '', '^(%d+)/(%d+)$')
local wanted = now + lease_ms
if floor and polled_at and now - polled_at <= silence_ms and beat_at and now - beat_at <= silence_ms then
  -- A silence of the doors may have begun and ended between two polls.
  wanted = silent_until + lease_ms
end
if not floor or wanted > floor then
  floor = wanted
  redis.call('SET', floor_key, floor)
end
redis.call('SET', polled, now)
if redis.call('EXISTS', KEYS[6], KEYS[7]) > 0 or redis.call('EXISTS', KEYS[8]) == 0 then
  return {-1}
end

local given = {-1}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local kind, tenant, id = string.match(member, '^(%a+)/([^/]+)/([^/]+)/')
  if kind == 'lease' and now < floor then
    redis.call('ZADD', due, floor, member)
  else
    redis.call('ZADD', due, now + hold_ms + 0.5, member)
    local header = redis.call('HGET', ARGV[5] .. tenant .. ':' .. id, 'h')
    if header then
      if kind == 'lease' then
        redis.call('SADD', marks, string.sub(member, #kind + 2))
      end
      given[#given + 1] = member
      given[#given + 1] = header
    end
  end
end
local next_due = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
if next_due[2] then
  given[1] = math.max(0, math.ceil(next_due[2] - now))
end
return given
