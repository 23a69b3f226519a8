/* Records which edges of the extension's code have run, for `make fuzz-native`: gcc calls this at each basic block of
   what is compiled with -fsanitize-coverage=trace-pc, which this file is not. */

#include <stdint.h>

#define EDGES (1 << 16)

unsigned char segstore_seen[EDGES];
int segstore_edges; /* how many of them have been seen */

void
__sanitizer_cov_trace_pc(void)
{
    static uintptr_t before;
    uintptr_t here = (uintptr_t)__builtin_return_address(0) - (uintptr_t)segstore_seen; /* the same in each process */
    uintptr_t edge = (here ^ before) % EDGES;
    before = here << 5;
    if (!segstore_seen[edge]) {
        segstore_seen[edge] = 1;
        segstore_edges++;
    }
}
