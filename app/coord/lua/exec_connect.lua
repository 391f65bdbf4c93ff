-- exec_connect(boot, executor, connection, ttl_ms): this connection is the current one; whoever was is told through the channel.
-- Open calls of the one before it are settled.
local now = key('exec', ARGV[2])
local old = redis.call('GET', now)
redis.call('SET', now, ARGV[3], 'PX', ARGV[4])
if old and old ~= ARGV[3] then
  dropped(ARGV[2], old)
end
redis.call('PUBLISH', key('exec', ARGV[2], 'ch'), 'connected ' .. ARGV[3])
return 1
