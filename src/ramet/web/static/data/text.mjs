// Words of agents, made safe to look at. Everything that is returned becomes a text node.

// Escape sequences of terminals: CSI, OSC and the like, and single-character ones.
const ANSI = /[\u001b\u009b](?:\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[PX^_][^\u001b]*(?:\u001b\\)?|[[()#;?]?[0-?]{0,64}[ -/]{0,8}[@-~])/g;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
// Characters that reorder or hide text: they are shown by their numbers.
const HIDDEN = /[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]|\udb40[\udc00-\udc7f]/g;

/** Return a text without sequences for terminals, and with characters that reorder text made visible. */
export function clean(text) {
  return plain(text).replace(ANSI, "").replace(/\r\n?/g, "\n").replace(CONTROL, "")
    .replace(HIDDEN, (each) => `⟨U+${each.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** Return one line of at most `most` characters. Only the beginning of the text is looked at. */
export function brief(text, most = 200) {
  const start = clean(plain(text).slice(0, most * 4)).replace(/\s+/g, " ").trim();
  return start.length > most ? `${start.slice(0, most)}…` : start;
}

/** Return the beginning of a text, cleaned, without half of a character at its end, and how much there is. */
export function beginning(text, most) {
  const all = plain(text);
  let end = Math.min(most, all.length);
  if (end < all.length && all.charCodeAt(end - 1) >= 0xd800 && all.charCodeAt(end - 1) < 0xdc00) end -= 1;
  return {shown: clean(all.slice(0, end)), length: all.length, isCut: end < all.length};
}

const INDENTED = 50; //: levels; indentation of deeper data would be many times as long as the data

/** Return data as JSON, indented unless it is nested deeply; texts stay as they are. Never throws. */
export function asText(value) {
  if (typeof value === "string") return value;
  try {
    return JSON.stringify(value, null, isDeeper(value, INDENTED) ? 0 : 2) ?? "";
  } catch {
    return "(data that is nested too deeply to be shown)";
  }
}

function isDeeper(value, levels) {
  let level = [value];
  for (let depth = 0; level.length; depth += 1) {
    if (depth > levels) return true;
    level = level.flatMap((each) => (each && typeof each === "object" ? Object.values(each) : []));
  }
  return false;
}

// An object from outside may have a `toString` that is no function: then String() throws.
const plain = (value) => (value && typeof value === "object" ? asText(value) : String(value ?? ""));

const starts = new WeakMap();

/** Return the beginning of data as text, computed once for each object: it may have megabytes. */
export function startOf(value) {
  if (!value || typeof value !== "object") return plain(value).slice(0, 400);
  if (!starts.has(value)) starts.set(value, asText(value).slice(0, 400));
  return starts.get(value);
}

/** Return a part of an address without its escapes; as it is if they are wrong, as in a link that a stranger made. */
export function unescaped(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
