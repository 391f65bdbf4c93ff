-- tail(boot, L, from, count): the tail from offset `from` (-1: from the archived head), at most `count` entries, in one atomic look.
-- -> OK gen arch next ver state astate asha from {events...} | COLD
local v = open(ARGV[2], 'gen', 'arch', 'next', 'ver', 'state', 'astate', 'asha')
if not v then
  return {'COLD'}
end
local from = tonumber(ARGV[3])
if from < 0 then
  from = tonumber(v[2])
end
local out = {}
if tonumber(ARGV[4]) > 0 and from < tonumber(v[3]) then
  for i, entry in ipairs(redis.call('XRANGE', key('tail', ARGV[2], v[1]), from .. '-1', '+', 'COUNT', ARGV[4])) do
    -- a trimmed stream skips silently: only a dense run from `from` on counts
    if entry[1] ~= (from + i - 1) .. '-1' then
      break
    end
    out[i] = entry[2][2]
  end
end
return {'OK', v[1], v[2], v[3], v[1] .. '.' .. v[4], v[5], v[6], v[7], tostring(from), out}
