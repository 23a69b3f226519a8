// The panels of connections and of containers.

const connectionsTable = grid("Connections", "cards");

const connectionsPanel = addPanel({
  id: "connections",
  title: "Connections",
  body: [connectionsTable],
  async look() {
    const it = await ask("GET", "/v1/connections", { query: { limit: 200 } });
    connectionsPanel.count(number(it.total));
    connectionsPanel.note(it.total > it.connections.length ? `The first ${it.connections.length} are shown.` : "");
    fill(connectionsTable, [
      ["Number", (each) => each.number ?? "", "n"],
      ["Store", (each) => each.store, "n"],
      ["Peer", (each) => each.admin ? `${each.peer} (admin)` : each.peer],
      ["Writers", (each) => number(each.writers), "n"],
      ["Waiting reads", (each) => number(each.waiting_reads), "n x"],
      ["Bytes in", (each) => number(each.bytes_in), "n"],
      ["Bytes out", (each) => number(each.bytes_out), "n"],
      ["Bytes held", (each) => number(each.held_bytes), "n x"],
      ["Actions", null, "buttons", [rowButton("Close", closeConnection)]],
    ], it.connections, (each) => `${each.store} ${each.number} ${each.peer}`);
  },
});

const closeConnection = (each) => act(
  () => each.number === null ? Promise.reject(new Error("Connections have no numbers here: watched=False."))
    : ask("DELETE", "/v1/connections/{number}", { parts: { number: each.number } }),
  () => `The connection of ${each.peer} was closed.`);

const containersTable = grid("Containers", "cards");

const containersPanel = addPanel({
  id: "containers",
  title: "Containers",
  body: [containersTable],
  needs: "containers",
  async look() {
    const it = await ask("GET", "/v1/containers");
    containersPanel.count(number(it.containers.length));
    containersPanel.note(it.movable ? "" : "They cannot be moved from here: this takes several stores in one process.");
    fill(containersTable, [
      ["Container", (each) => each.container, "n"],
      ["Store", (each) => each.store ?? (each.address ? "elsewhere" : "none"), "n"],
      ["Address", (each) => each.address ?? ""],
      ["Segments", (each) => each.open ? number(each.segments) : "", "n"],
      ["Move to store", (_, cell) => offer(cell, it), "buttons", [() => element("select"), rowButton("Move", move)]],
    ], it.containers, (each) => each.container);
  },
});

/** Offers the stores that a container can be moved to. */
function offer(cell, it) {
  const [select, go] = cell.children;
  select.hidden = go.hidden = !it.movable;
  if (select.options.length === it.stores) return;
  const row = cell.parentElement;
  select.setAttribute("aria-label", `Store that container ${row.shown.container} is to move to`);
  select.replaceChildren(...Array.from({ length: it.stores }, (_, index) => element("option", null, String(index))));
  select.value = String(row.shown.store ?? 0);
}

const move = (each, row) => {
  const to = Number(row.querySelector("select").value);
  return act(() => ask("POST", "/v1/containers/{container}/move", { parts: each, body: { to } }),
    () => `Container ${each.container} was moved to store ${to}.`);
};
