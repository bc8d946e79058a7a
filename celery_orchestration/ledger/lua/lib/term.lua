-- Whose term it is. Needs records.

local function is_term(term)
  local v = call('HMGET', P .. 'lead', 'term', 'until')
  return v[1] == term and (tonumber(v[2]) or 0) >= NOW
end
