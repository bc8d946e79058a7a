-- Lanes: the waiting runs of one job and room key, by rank. Needs records.

-- checked: the lane of runs whose dependencies were checked.
function lane_of(j, key, checked)
  return (checked and K.lane_checked or K.lane)(j.name, key)
end

-- Keyed jobs: the room keys whose lanes have waiting runs and room.
function lane_heads_of(j, checked)
  return (checked and K.lane_heads_checked or K.lane_heads)(j.name)
end

function first_in(lane)
  local e = call('ZRANGE', lane, 0, 0, 'WITHSCORES')
  if e[1] then return e[1], tonumber(e[2]) end
  return nil
end

-- The first member of a set by rank that arrived before `arrival`; if there is none, the first of all. Ranks follow the
-- order of arrival only within a priority, so each priority is searched.
function first_until(set, arrival)
  for class = arrival and -1 or 4, 3 do
    local e = call('ZRANGEBYSCORE', set, int(class * CLASS), '(' .. int(class * CLASS + arrival), 'WITHSCORES', 'LIMIT', 0, 1)
    if e[1] then return e[1], tonumber(e[2]) end
  end
  return first_in(set)
end
