-- Reads what the schema describes. Each constructor below declares the display filters of a field and returns how the
-- field is read: `read(c)` adds it to c.tree and moves c.at, the offset of the next byte in c.tvb; c.stop is the
-- frame's end. Written for Lua 5.2 to 5.4, Wireshark 3.6 and newer.

local proto = Proto("segstore", "Pravega segment store")
local HEADER_BYTES, MOST_ELEMENTS, PREVIEW_BYTES = 8, 10000, 64
local declared = {}

local function declare(make, path, ...)
  local name = path:match("[^.]+$"):gsub("_", " ")
  local field = make("segstore." .. path, name:sub(1, 1):upper() .. name:sub(2), ...)
  declared[#declared + 1] = field
  return field
end

local function int32(c, at)
  return c.tvb(at or c.at, 4):int()
end

local function refuse(c, path, why)
  error({at = c.at, why = path .. ": " .. why}, 0)
end

local function need(c, size, path)
  if size < 0 then
    refuse(c, path, "length " .. size .. " is negative")
  elseif size > c.stop - c.at then
    refuse(c, path, size .. " bytes are needed but " .. (c.stop - c.at) .. " are left")
  end
end

local function take(c, size, field, ...)
  local item = c.tree:add(field, c.tvb(c.at, size), ...)
  c.at = c.at + size
  return item
end

-- Modified UTF-8 -------------------------------------------------------------------------------------------------

local function utf8_of(code)
  if code == 0 then
    code = 0x2400 -- a value of Wireshark ends at a NUL
  elseif code >= 0xD800 and code < 0xE000 then
    code = 0xFFFD
  end
  local floor = math.floor
  local last, third, second = 0x80 + code % 64, 0x80 + floor(code / 64) % 64, 0x80 + floor(code / 4096) % 64
  if code < 0x80 then
    return string.char(code)
  elseif code < 0x800 then
    return string.char(0xC0 + floor(code / 64), last)
  elseif code < 0x10000 then
    return string.char(0xE0 + floor(code / 4096), third, last)
  end
  return string.char(0xF0 + floor(code / 262144), second, third, last)
end

local function decoded(data) -- nil for malformed bytes
  if not data:find("[%z\128-\255]") then
    return data
  end
  local out, high, at = {}, nil, 1
  while at <= #data do
    local a, b, d = data:byte(at, at + 2)
    local unit
    if a < 0x80 then
      unit, at = a, at + 1
    elseif a >= 0xC0 and a < 0xE0 and b and b >= 0x80 and b < 0xC0 then
      unit, at = (a - 0xC0) * 64 + b - 0x80, at + 2
    elseif a >= 0xE0 and a < 0xF0 and d and b >= 0x80 and b < 0xC0 and d >= 0x80 and d < 0xC0 then
      unit, at = (a - 0xE0) * 4096 + (b - 0x80) * 64 + d - 0x80, at + 3
    else
      return nil
    end
    if high and unit >= 0xDC00 and unit < 0xE000 then
      out[#out] = utf8_of(0x10000 + (high - 0xD800) * 1024 + unit - 0xDC00)
      high = nil
    else
      out[#out + 1] = utf8_of(unit)
      high = unit >= 0xD800 and unit < 0xDC00 and unit or nil
    end
  end
  return table.concat(out)
end

-- Fields ---------------------------------------------------------------------------------------------------------

local FIXED = {
  b = {ProtoField.int8, 1}, i = {ProtoField.int32, 4}, q = {ProtoField.int64, 8}, ["?"] = {ProtoField.bool, 1},
  ["16s"] = {ProtoField.guid, 16},
}

local function fixed(path, code)
  local make, size = FIXED[code][1], FIXED[code][2]
  local field = declare(make, path)
  return {field = field, read = function(c)
    need(c, size, path)
    take(c, size, field)
  end}
end

local function number(path, members)
  local field = declare(ProtoField.int32, path, base.DEC, members)
  return {field = field, read = function(c)
    need(c, 4, path)
    take(c, 4, field)
  end}
end

local function constant(path, value)
  return {read = function(c)
    need(c, 4, path)
    if int32(c) ~= value then
      refuse(c, path, "it is " .. int32(c) .. " instead of " .. value)
    end
    c.at = c.at + 4
  end}
end

local function text(path, secret)
  local field = declare(ProtoField.string, path)
  return {field = field, read = function(c)
    need(c, 2, path)
    local size = c.tvb(c.at, 2):uint()
    if size > c.stop - c.at - 2 then
      refuse(c, path, "a text of " .. size .. " bytes is announced but " .. (c.stop - c.at - 2) .. " are left")
    end
    local value = decoded(size > 0 and c.tvb:raw(c.at + 2, size) or "")
    if not value then
      refuse(c, path, "it is not modified UTF-8")
    end
    take(c, 2 + size, field, value)
    c.said = c.said or (not secret and value or nil)
  end}
end

local function preview(c, size)
  local head = size > 0 and c.tvb:raw(c.at, math.min(size, PREVIEW_BYTES)) or ""
  return head:find("^[\32-\126]+$") and ': "' .. head .. (size > #head and "…" or "") .. '"' or ""
end

local read_frame

-- Adds the frames from `at` to the tree, up to c.at or to the first bytes that form none.
local function unfold(c, at, tree, frames)
  local shown = 0
  while c.at - at >= HEADER_BYTES and frames[int32(c, at)] and shown < MOST_ELEMENTS do
    local size = int32(c, at + 4)
    if size < 0 or size > c.at - at - HEADER_BYTES then
      break
    end
    size, shown = HEADER_BYTES + size, shown + 1
    read_frame(c.tvb, at, size, tree:add(c.tvb(at, size), ""), true)
    at = at + size
  end
  if at < c.at then
    tree:add(c.tvb(at, c.at - at), (c.at - at) .. " more bytes, not taken apart")
  end
end

-- Bytes that start with a frame are unfolded, if it has a length: zeros would be events without one.
local function payload(c, size, field, path, frames)
  need(c, size, path)
  local at, said = c.at, preview(c, size)
  local item = take(c, size, field)
  item:append_text(" (" .. size .. " bytes" .. said .. ")")
  if frames and size > HEADER_BYTES and frames[int32(c, at)] and int32(c, at + 4) > 0 then
    unfold(c, at, item, frames)
  end
end

local function data(path, negative_is_empty, optional, frames)
  local field = declare(ProtoField.bytes, path)
  return {field = field, read = function(c)
    if optional and c.stop - c.at < 4 then
      return take(c, 0, field):append_text(" (missing: its default)")
    end
    need(c, 4, path)
    local size = int32(c)
    c.at = c.at + 4
    payload(c, size < 0 and negative_is_empty and 0 or size, field, path, frames)
  end}
end

local function sized(path, trailer, trailer_path, missing)
  local field = declare(ProtoField.bytes, path)
  local behind = trailer and fixed(trailer_path, trailer)
  return {field = field, read = function(c)
    local available = c.stop - c.at
    need(c, 8, path)
    local total, size = int32(c), int32(c, c.at + 4)
    if size ~= 0 and total > available then
      refuse(c, path, total .. " bytes are announced but " .. available .. " are left")
    end
    c.at = c.at + 8
    payload(c, size, field, path)
    if behind and size > 0 then
      behind.read(c)
    elseif behind then
      take(c, 0, behind.field, missing):append_text(" (left out after no data)")
    end
  end}
end

local function remainder(path, frames)
  local field = declare(ProtoField.bytes, path)
  return {field = field, read = function(c)
    if not frames then
      return payload(c, c.stop - c.at, field, path)
    end
    local at = c.at
    unfold(c, at, take(c, c.stop - at, field), frames)
  end}
end

local function zero_run(path)
  local field = declare(ProtoField.uint32, path)
  return {field = field, read = function(c)
    take(c, c.stop - c.at, field, c.stop - c.at)
  end}
end

local function tail(needs, node, default, note)
  return {field = node.field, read = function(c)
    if c.stop - c.at >= needs then
      node.read(c)
    elseif node.field then
      take(c, 0, node.field, default):append_text(" (" .. note .. ")")
    end
  end}
end

local function structure(nodes)
  return {read = function(c)
    for _, node in ipairs(nodes) do
      node.read(c)
    end
  end}
end

local function many(path, smallest, negative_is_empty, nodes)
  local row = structure(nodes)
  return {read = function(c)
    need(c, 4, path)
    local count = int32(c)
    if count * smallest > c.stop - c.at - 4 or (count < 0 and not negative_is_empty) then
      refuse(c, path, "a list of " .. count .. " elements is announced but " .. (c.stop - c.at - 4) .. " bytes are left")
    end
    c.at = c.at + 4
    for index = 1, count do
      if index > MOST_ELEMENTS then
        refuse(c, path, "a list of " .. count .. " elements, of which the first " .. MOST_ELEMENTS .. " are shown")
      end
      row.read(c)
    end
  end}
end

--@commands@

-- Frames ---------------------------------------------------------------------------------------------------------

local names = {}
for code, command in pairs(COMMANDS) do
  names[code] = command.name
end
local type_field = declare(ProtoField.int32, "type", base.DEC, names)
local length_field = declare(ProtoField.int32, "length")
local unread_field = declare(ProtoField.bytes, "unread")
proto.fields = declared

local malformed = ProtoExpert.new("segstore.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
local unknown = ProtoExpert.new("segstore.unknown", "Unknown type", expert.group.UNDECODED, expert.severity.WARN)
local failure = ProtoExpert.new("segstore.failure", "Failure", expert.group.RESPONSE_CODE, expert.severity.WARN)
local cut = ProtoExpert.new("segstore.cut", "Not captured whole", expert.group.UNDECODED, expert.severity.NOTE)
proto.experts = {malformed, unknown, failure, cut}

-- Adds the fields of a frame to its tree; returns its one-line description. nested: whether it is part of a block.
function read_frame(tvb, at, size, tree, nested)
  local c = {tvb = tvb, at = at, stop = at + size, tree = tree}
  local code, length = int32(c), int32(c, at + 4)
  local command = COMMANDS[code]
  local name = command and command.name or "UNKNOWN " .. code
  tree:set_text(name .. ", " .. size .. " bytes")
  take(c, 4, type_field)
  take(c, 4, length_field)
  if length < 0 or length > MOST_FRAME_BYTES - HEADER_BYTES then
    tree:add_proto_expert_info(malformed, "the header announces " .. length .. " bytes")
  elseif not command or (code == EVENT and not nested) then
    local why = command and "an event is part of data, never a frame" or "no command has the type " .. code
    tree:add_proto_expert_info(unknown, why)
  else
    local good, wrong = pcall(structure(command.nodes).read, c)
    if not good and type(wrong) ~= "table" then
      error(wrong, 0)
    elseif not good and tvb:reported_len() > tvb:len() then
      tree:add_proto_expert_info(cut, "the capture has only the first " .. size .. " bytes")
    elseif not good then
      tree:add_proto_expert_info(malformed, name .. "." .. wrong.why)
      name = name .. " [malformed]"
    elseif command.failure then
      tree:add_proto_expert_info(failure, name .. (c.said and " " .. c.said or ""))
    end
  end
  if c.at < c.stop then
    take(c, c.stop - c.at, unread_field):append_text(" (not read: behind the last field)")
  end
  return name .. (c.said and #c.said > 0 and " " .. c.said or "")
end

local function frame_bytes(tvb, _, at)
  local length = tvb(at + 4, 4):int()
  if length < 0 or length > MOST_FRAME_BYTES - HEADER_BYTES then
    return tvb:len() - at -- where the next frame starts is unknown
  end
  return HEADER_BYTES + length
end

function proto.dissector(tvb, pinfo, tree)
  local said = {}
  pinfo.cols.protocol = "segstore"
  dissect_tcp_pdus(tvb, tree, HEADER_BYTES, frame_bytes, function(frame, _, root)
    local item = root:add(proto, frame())
    said[#said + 1] = read_frame(frame, 0, frame:len(), item)
    item:prepend_text("Segment store: ")
    pinfo.cols.info = table.concat(said, " | ")
    return frame:len()
  end)
  return tvb:len()
end

-- A connection whose first bytes are a Hello is one of a segment store, whatever its port.
proto:register_heuristic("tcp", function(tvb, pinfo, tree)
  if tvb:len() < #HELLO or tvb:raw(0, #HELLO) ~= HELLO then
    return false
  end
  pinfo.conversation = proto
  proto.dissector(tvb, pinfo, tree)
  return true
end)

proto.prefs.ports = Pref.range("TCP ports", "@port@", "Ports of segment stores, for connections without a Hello", 65535)
local ports
local function listen()
  local known = DissectorTable.get("tcp.port")
  if ports then
    known:remove(ports, proto)
  end
  ports = proto.prefs.ports
  known:add(ports, proto)
end
listen()
proto.prefs_changed = listen
