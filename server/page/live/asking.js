// Requests to the server, with its token if it has one.

class Failed extends Error {}
/** The server refuses a request. errors: all of them, each with `where`, the part of the request that is wrong. */
class Refused extends Failed {
  constructor({ errors, ...problem }) {
    super(textOfError(problem));
    this.errors = (errors ?? [problem]).map((error) => ({ where: error.where, message: textOfError(error) }));
  }
}
const textOfError = ({ detail, where }) => detail.startsWith(`${where}: `) ? detail.slice(where.length + 2) : detail;
class Locked extends Failed {}
class Gone extends Failed {}

// The token comes from the address (#token=…) or is typed in; it is kept until the tab is closed.
const FRAGMENT = "#token=";
if (location.hash.startsWith(FRAGMENT)) {
  const token = location.hash.slice(FRAGMENT.length);  // may have a % that encodes nothing
  sessionStorage.setItem("token", attempt(() => decodeURIComponent(token), token));
  history.replaceState(null, "", location.pathname + location.search);
}
/**
 * Requests a resource and returns its JSON, or its bytes. path: with {names} that `parts` has. query: without empty
 * values. patience: in ms, until the answer is complete. isFile: whether the answer is a Blob.
 *
 * Throws Refused, Locked and Gone.
 */
async function ask(method, path, { parts = {}, query = {}, body, patience = 8000, isFile = false } = {}) {
  const where = path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(parts[name]));
  const asked = Object.entries(query).filter(([, value]) => value !== "" && value !== false);
  const search = new URLSearchParams(asked).toString();
  const signal = AbortSignal.timeout(patience);
  const token = sessionStorage.getItem("token"), headers = token ? { authorization: `Bearer ${token}` } : {};
  const options = { method, cache: "no-store", redirect: "error", signal, headers };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response, answer = null;
  try {
    response = await fetch(search ? `${where}?${search}` : where, options);
    if (response.status !== 204) answer = await (isFile && response.ok ? response.blob() : response.json());
  } catch (error) {
    throw new Gone("The server does not answer.", { cause: error });
  }
  if (response.status === 401) throw new Locked(answer.detail);
  if (!response.ok) throw new Refused(answer);
  return answer;
}

/** Does something that may fail, and shows that. Returns what it returned; undefined if it failed. */
async function trying(doing, complain = (error) => say(error.message, true)) {
  try {
    return await doing();
  } catch (error) {
    if (!(error instanceof Failed)) throw error;
    return complain(error);
  }
}
