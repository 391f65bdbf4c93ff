-- delta(boot, L, worker, epoch, bytes): publishes streaming output that is not an event. -> OK | COLD | FENCED
local v = open(ARGV[2], 'gen', 'worker', 'epoch')
if not v then
  return {'COLD'}
end
if v[2] ~= ARGV[3] or v[3] ~= ARGV[4] then
  return {'FENCED'}
end
redis.call('PUBLISH', key('ch', ARGV[2]), 'D ' .. v[1] .. '\n' .. ARGV[5])
return {'OK'}
