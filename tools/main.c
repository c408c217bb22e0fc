/* Entry of the program. */
#include <stdlib.h>
#include <unistd.h>

#include "tools/cli.h"

/* Some ten microseconds: measured as fast as the default on idle cores. */
#define SPIN_COUNT "5000"

/* OpenMP threads wait for each other by spinning, by default for milliseconds: fine on idle cores,
 * but beside loader threads or another job most of the time goes into it (a pass of ViTTT-T took
 * 752 ms instead of 131 ms on two shared cores). libgomp reads its settings before main() runs, so
 * the program starts once more with a short spin, unless the caller has chosen. When that fails,
 * all works as before. */
static void limit_spinning(char **argv) {
    char path[4096];
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0 || setenv("GOMP_SPINCOUNT", SPIN_COUNT, 1) != 0) return;
    path[length] = '\0';
    execv(path, argv);
}

int main(int argc, char **argv) {
    if (argc > 0) limit_spinning(argv);
    return cli_main(argc, argv);
}
