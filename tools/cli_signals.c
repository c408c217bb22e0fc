/* Signals that end a run after saving. */
#include "tools/cli.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static void (*stop_request)(void);
static volatile sig_atomic_t first_signal;

static void on_signal(int number) {
    /* Somebody at the keyboard who asks twice means now. */
    if (number == SIGINT && first_signal == SIGINT) _exit(130);
    if (first_signal == 0) first_signal = number;
    if (stop_request) stop_request();
}

void signals_catch(void (*request)(void)) {
    stop_request = request;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
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
