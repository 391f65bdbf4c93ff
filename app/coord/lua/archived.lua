-- archived(boot, L, gen, upto, astate, asha): the archived head moves to `upto`; the tail is trimmed below it, but for a window that
-- lets readers of the latest events stay out of the store. -> OK | COLD | OLD
local v = open(ARGV[2], 'gen', 'arch', 'next')
if not v then
  return {'COLD'}
end
local upto = tonumber(ARGV[4])
if v[1] ~= ARGV[3] or upto > tonumber(v[3]) or upto <= tonumber(v[2]) then
  return {'OLD'}
end
redis.call('HSET', key('log', ARGV[2]), 'arch', upto, 'astate', ARGV[5], 'asha', ARGV[6])
if upto > 64 then
  redis.call('XTRIM', key('tail', ARGV[2], v[1]), 'MINID', (upto - 64) .. '-1')
end
return {'OK'}
