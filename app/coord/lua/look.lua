-- look(boot, L): -> OK gen next ver state arch worker epoch | COLD
local v = open(ARGV[2], 'gen', 'next', 'ver', 'state', 'arch', 'worker', 'epoch')
if not v then
  return {'COLD'}
end
return {'OK', v[1], v[2], v[1] .. '.' .. v[3], v[4], v[5], v[6], v[7]}
