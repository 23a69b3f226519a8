// Steers a served store with the generated client. Arguments: the address of the HTTP API.
// Prints "ready" when it waits for an append of another client, then as JSON what it has seen.
import { createClient } from './gen/client/index.js';
import * as api from './gen/sdk.gen.js';
import type { NewEvent, ProblemDetails, Rule } from './gen/types.gen.js';

declare const process: { argv: string[]; stdout: { write(text: string): void } };

const baseUrl = process.argv[2]!;
const client = createClient({ baseUrl });
const stream = { client, path: { scope: 'shop', stream: 'orders' } };

// The data of an answer; throws what the server said if there is none.
async function done<T>(answer: Promise<{ data?: T; error?: ProblemDetails }>): Promise<T> {
  const { data, error } = await answer;
  if (error !== undefined) throw new Error(`${error.status} ${error.where}: ${error.detail}`);
  return data as T;
}

async function refused(answer: Promise<{ error?: ProblemDetails }>): Promise<ProblemDetails> {
  const { error } = await answer;
  if (error === undefined) throw new Error('was not refused');
  return error;
}

const created = await done(api.createStream({ ...stream, body: { segments: 2 } }));
const events: NewEvent[] = [{ json: { order: 1 }, routing_key: 'a' }, { text: 'hello', routing_key: 'a' }];
const written = await done(api.writeEvents({ ...stream, body: { events } }));
const read = await done(api.readEvents({ ...stream, query: { as: 'json' } }));
await done(api.takeSnapshot({ client, path: { name: 'base' } }));

await done(api.keepRequests({ client }));
const rule: Rule = { name: 'late', match: 'type = APPEND_BLOCK_END', nth: 1, do: { delay_ms: 1, at: 'before' } };
const added = await done(api.addFault({ client, body: rule }));
process.stdout.write('ready\n');
const match = 'type = APPEND_BLOCK_END and segment ~ "shop/orders/*"';
const matched = await done(api.waitForRequests({ client, query: { match, count: 1, timeout_s: 50 } }));
const verified = await done(api.verifyRequests({ client, query: { match, at_least: 1 } }));
const unverified = await refused(api.verifyRequests({ client, query: { match, exactly: 0 } }));
const fault = await done(api.getFault({ client, path: { name: 'late' } }));
const requests = await done(api.listRequests({ client, query: { match } }));
const detail = await done(api.getRequest({ client, path: { number: requests.requests[0]!.number } }));
const trace = await done(api.getTrace({ client, parseAs: 'blob' }));

await done(api.restoreSnapshot({ client, path: { name: 'base' } }));
const restored = await done(api.readEvents({ ...stream }));
const wrongAction = await refused(api.addFault({ client, body: { do: 'WrongHots' } }));
const missing = await refused(api.sealStream({ client, path: { scope: 'shop', stream: 'none' } }));

const seen = {
  segments: created.segments.length,
  written: written.events.length,
  read: read.events.map((each) => each.json ?? each.text),
  added: added.name,
  fired: fault.fired,
  matched: matched.type,
  verified: verified.count,
  unverified: unverified.status,
  payload: detail.payload.map((each) => each.text),
  trace: await (trace as Blob).size,
  restored: restored.events.length,
  wrongAction,
  missing,
};
process.stdout.write(`${JSON.stringify(seen)}\n`);
