#!lua flags=allow-oom
-- Runs a lease anew in the view alone; 0 where the log has to decide about the heartbeat.
--
-- Guards that only the current, acknowledged lease is renewed, and none that is being expired: its expiry may be in
-- the log already. While the view is rebuilt, torn or lost, it does not know the current lease.
--
-- KEYS: leases, marks, due, rebuilding, dirty, watermark. ARGV: execution id, `<dispatch id>/<attempt>/`, lease in ms.
if redis.call('EXISTS', KEYS[4], KEYS[5]) > 0 or redis.call('EXISTS', KEYS[6]) == 0 then
  return 0
end
local lease = redis.call('HGET', KEYS[1], ARGV[1])
if not lease or string.sub(lease, 1, #ARGV[2]) ~= ARGV[2] then
  return 0
end
local place = string.sub(lease, #ARGV[2] + 1)
local item = 'lease/' .. place
if redis.call('SISMEMBER', KEYS[2], place) == 1 or not redis.call('ZSCORE', KEYS[3], item) then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[3], 'XX', now + ARGV[3], item)
return 1
