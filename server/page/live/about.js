// The panel of the server itself.

const facts = element("div");
let served = null, counted = null;

/** Requests what the server is, and its counters, which cost it little however much it stores. */
async function lookAtServer() {
  const before = served;
  served = await ask("GET", "/v1/server");
  knowCapabilities(served.capabilities);
  if (before !== null && before.started_ms !== served.started_ms) {
    for (const each of onRestart) each();
    say("The server was restarted.");
  }
  counted = can("counters") ? await ask("GET", "/v1/counters") : null;
}

/** The current value of a counter, of all stores; null if there are no counters. */
function countedNow(name) {
  return counted && counted.stores.reduce((sum, each) => sum + (each.now[name] ?? 0), 0);
}

addPanel({
  id: "server",
  title: "Server",
  open: true,
  body: [facts],
  async look() {
    const several = served.stores.length > 1;
    const rows = [["Version", served.segstore], ["Since", new Date(served.started_ms).toLocaleString("en-GB")]];
    for (const each of served.stores) {
      const admin = each.admin_address ? `, admin port ${each.admin_address}` : "";
      const behind = each.upstream ? ` → ${each.upstream}` : "";
      const state = each.serving ? `${each.address}${behind}${admin}` : "stopped";
      rows.push([several ? `Store ${each.store}` : "Segment store", state]);
    }
    rows.push(["Controller", served.controller ?? "none"], ["TLS", yes(served.tls)]);
    if (can("stores")) rows.push(["Data", served.data ?? "in memory"]);
    showFacts(facts, rows.map(([name, value]) => [name, plain(value)]));
  },
});
