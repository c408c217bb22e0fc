/* Signals that end a run after saving. */
#include "tools/cli.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#include "core/clock.h"

/* One Ctrl-C may come twice: to the whole process group, and once more from whoever started this
 * process (its launcher, torchrun), which got it, too; and timeout(1) sends it to its child and to
 * the group. So the parent's and everybody else's are counted apart, and two of one source within
 * SIGNAL_SAME_S are one. */
enum { FROM_PARENT, FROM_OTHERS, SOURCES };

static void (*stop_request)(void);
static volatile sig_atomic_t first_signal;
static pid_t parent;
static _Atomic double asked[SOURCES]; /* when SIGINT came last; 0: never */

static bool is_second(const siginfo_t *info) {
    const bool from_parent = info->si_code != SI_KERNEL && info->si_pid == parent;
    const double now = seconds_now();
    const double before = atomic_exchange(&asked[from_parent ? FROM_PARENT : FROM_OTHERS], now);
    return before > 0 && now - before > SIGNAL_SAME_S;
}

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)context;
    /* Somebody at the keyboard who asks twice means now. */
    if (number == SIGINT && is_second(info)) _exit(130);
    if (first_signal == 0) first_signal = number;
    if (stop_request) stop_request();
}

void signals_catch(void (*request)(void)) {
    stop_request = request;
    parent = getppid();
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_RESTART | SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

int signals_exit_code(void) {
    switch (first_signal) {
    case 0:
        return 0;
    case SIGINT:
        return 130;
    case SIGTERM:
        return 143;
    default:
        return 75;
    }
}
