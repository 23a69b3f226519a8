// A segstore server for tests: a process that is steered over its HTTP API. Node 18 or newer; no packages.
//
//     const segstore = await Segstore.start();
//     await segstore.put('/v1/streams/shop/orders', { segments: 2 });
//     …                                              // your code connects to segstore.controller
//     await segstore.stop();

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';

const ANY_PORTS = ['--port', '0', '--controller-port', '0', '--http-port', '0'];

export class Segstore {
  #process;
  #addresses;

  constructor(process, addresses) {
    this.#process = process;
    this.#addresses = addresses;
  }

  // Starts the server and resolves once it listens. command: the executable; options: more of `segstore serve`.
  static async start({ command = process.env.SEGSTORE ?? 'segstore', options = [] } = {}) {
    const serve = ['serve', ...ANY_PORTS, '--announce', 'json', ...options];
    const server = spawn(command, serve, { stdio: ['ignore', 'pipe', 'inherit'] });
    process.once('exit', () => server.kill());
    const lines = createInterface({ input: server.stdout });
    const ended = once(server, 'close').then(([status]) => {
      throw new Error(`${command} serve ended with status ${status} before it listened`);
    });
    const [line] = await Promise.race([once(lines, 'line'), ended]);
    ended.catch(() => {}); // from now on, the server may end
    return new Segstore(server, JSON.parse(line));
  }

  // The controller's URI, for a client.
  get controller() {
    return `tcp://${this.#addresses.controller}`;
  }

  // The answer's JSON, undefined if it has no body. Throws with the problem's sentence if the server refuses.
  async request(method, path, { body, query = {} } = {}) {
    const url = new URL(path, `http://${this.#addresses.http}`);
    for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
    const json = body === undefined ? {} : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) };
    const answer = await fetch(url, { method, ...json });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status}: ${JSON.parse(text).detail}`);
    return text === '' ? undefined : JSON.parse(text);
  }

  get(path, query) {
    return this.request('GET', path, { query });
  }

  put(path, body) {
    return this.request('PUT', path, { body });
  }

  post(path, body) {
    return this.request('POST', path, { body });
  }

  delete(path) {
    return this.request('DELETE', path);
  }

  async stop() {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return; // it has ended already
    const ended = once(this.#process, 'close');
    this.#process.kill();
    await ended;
  }
}
