/* One process for each rank, on this host. Processes are started before anything of CUDA is. The
 * socket on which the ranks meet is made here and handed to rank 0: no port has to be agreed on,
 * and no file is left behind.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/ranks.h"

/* Ranks notice by themselves that one is gone and leave; these are for those that do not. */
static const double terminate_s = 8, kill_s = 40;

/* From a second Ctrl-C, which ends ranks at once, to the end of one that does not hear it. */
static const double impatient_s = 1;

typedef struct Child {
    pid_t pid; /* 0: ended */
    int code;
} Child;

typedef struct Launch {
    const LaunchPlan *plan;
    Child *children;
    int ranks, left;
    int signal;      /* that this process got; 0: none */
    int code;        /* that tells most: of the first that failed, or was stopped */
    double failed_s; /* when; 0: none has */
    double asked_s;  /* when SIGINT came first; 0: it did not */
    double urged_s;  /* when it came again */
    bool terminated, killed;
} Launch;

/* ---- starting ---- */

/* Only this host can reach it. */
static Status open_listener(int *fd, int *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || bind(*fd, (struct sockaddr *)&at, sizeof at) != 0 ||
        listen(*fd, PEERS_MAX) != 0 || getsockname(*fd, (struct sockaddr *)&at, &size) != 0)
        return status_errno("a port for the ranks");
    *port = ntohs(at.sin_port);
    return STATUS_OK;
}

static void set_number(const char *name, long value) {
    char text[32];
    snprintf(text, sizeof text, "%ld", value);
    (void)setenv(name, text, 1);
}

/* A run of one host has a number of its own; launchers of several hosts know only the place in
 * common. */
static Status name_run(const LaunchPlan *plan, int port) {
    unsigned long long run;
    char text[600];
    if (plan->nodes > 1) {
        snprintf(text, sizeof text, "%s:%d", plan->address, port);
    } else {
        if (getrandom(&run, sizeof run, 0) != (ssize_t)sizeof run)
            return status_errno("a number for the run");
        snprintf(text, sizeof text, "%016llx", run);
    }
    (void)setenv("TTV_RUN_ID", text, 1);
    return STATUS_OK;
}

static Status set_environment(const LaunchPlan *plan, int port) {
    TRY(name_run(plan, port));
    (void)setenv("MASTER_ADDR", plan->nodes > 1 ? plan->address : "127.0.0.1", 1);
    set_number("MASTER_PORT", port);
    set_number("TTV_LAUNCH_PORT", port);
    set_number("WORLD_SIZE", (long)plan->ranks * plan->nodes);
    set_number("LOCAL_WORLD_SIZE", plan->ranks);
    return STATUS_OK;
}

/* Does not come back. */
static void become_rank(const LaunchPlan *plan, int local, int listener, pid_t parent,
                        const sigset_t *mask) {
    const int rank = plan->node_rank * plan->ranks + local;
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    /* Whatever ends the parent, no rank outlives it: it saves and stops. */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(70);
    if (length <= 0) {
        complain("rank %d: /proc/self/exe, this program's own path: %s", rank, strerror(errno));
        _exit(70);
    }
    path[length] = '\0';
    set_number("RANK", rank);
    set_number("LOCAL_RANK", local);
    if (listener >= 0 && rank == 0) {
        set_number("TTV_LISTENER", listener);
        (void)fcntl(listener, F_SETFD, 0);
    }
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    execv(path, cli_argv);
    complain("rank %d: cannot start '%s': %s", rank, path, strerror(errno));
    _exit(70);
}

static Status start(Launch *l, const sigset_t *mask) {
    int listener = -1, port = l->plan->port;
    const pid_t parent = getpid();
    if (l->plan->nodes < 2) TRY(open_listener(&listener, &port));
    TRY(set_environment(l->plan, port));
    Status s = STATUS_OK;
    for (int i = 0; i < l->ranks && s == STATUS_OK; i++) {
        const pid_t pid = fork();
        if (pid == 0) become_rank(l->plan, i, listener, parent, mask);
        if (pid < 0) {
            s = status_errno("starting rank %d", i);
        } else {
            l->children[i].pid = pid;
            l->left++;
        }
    }
    if (listener >= 0) close(listener);
    return s;
}

/* ---- waiting ---- */

static void send_all(const Launch *l, int number) {
    for (int i = 0; i < l->ranks; i++)
        if (l->children[i].pid > 0) (void)kill(l->children[i].pid, number);
}

/* A rank that stops because another is lost, or was asked to stop, is not the one to tell of. */
static int weight(int code) {
    return code == 0 ? 0 : code == 75 ? 1 : code == 130 || code == 143 ? 2 : 3;
}

static void note_end(Launch *l, int rank, int status) {
    const bool by_signal = WIFSIGNALED(status);
    const int code = by_signal ? 75 : WEXITSTATUS(status);
    if (by_signal && !l->terminated && WTERMSIG(status) != l->signal)
        complain("rank %d was ended by signal %d (%s)", l->plan->node_rank * l->plan->ranks + rank,
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    l->children[rank] = (Child){0, code};
    l->left--;
    if (code == 0) return;
    if (l->failed_s == 0) l->failed_s = seconds_now();
    if (weight(code) > weight(l->code)) l->code = code;
}

static void reap(Launch *l) {
    for (int i = 0; i < l->ranks; i++) {
        int status;
        if (l->children[i].pid > 0 && waitpid(l->children[i].pid, &status, WNOHANG) > 0)
            note_end(l, i, status);
    }
}

/* Ctrl-C reaches all processes of the terminal by itself; what else comes to the whole group comes
 * twice to the ranks, which know (cli_signals.c). */
static void forward(Launch *l, const siginfo_t *info) {
    const double now = seconds_now();
    if (l->signal == 0) l->signal = info->si_signo;
    if (info->si_signo == SIGINT) {
        if (l->asked_s > 0 && now - l->asked_s > SIGNAL_SAME_S && l->urged_s == 0) l->urged_s = now;
        if (l->asked_s == 0) l->asked_s = now;
    }
    if (info->si_code != SI_KERNEL) send_all(l, info->si_signo);
}

static void end_stragglers(Launch *l) {
    const double since = l->failed_s > 0 ? seconds_now() - l->failed_s : 0;
    if (since > terminate_s && !l->terminated) {
        l->terminated = true;
        send_all(l, SIGTERM);
        send_all(l, SIGCONT); /* one that was halted hears it, too */
    }
    const bool urged = l->urged_s > 0 && seconds_now() - l->urged_s > impatient_s;
    if ((since > kill_s || urged) && !l->killed) {
        l->killed = l->terminated = true;
        send_all(l, SIGKILL);
    }
}

static void wait_all(Launch *l, const sigset_t *wanted) {
    while (l->left > 0) {
        const struct timespec slice = {0, 200000000};
        siginfo_t info;
        const int number = sigtimedwait(wanted, &info, &slice);
        if (number > 0 && number != SIGCHLD) forward(l, &info);
        reap(l);
        end_stragglers(l);
    }
}

static int exit_code(const Launch *l) {
    /* 0: all had ended before the signal came through. */
    if (l->signal == 0 || l->code == 0 || weight(l->code) > 2) return l->code;
    return l->signal == SIGINT ? 130 : l->signal == SIGTERM ? 143 : 75;
}

int launch_ranks(const LaunchPlan *plan) {
    Launch l = {.plan = plan, .ranks = plan->ranks};
    sigset_t wanted, before;
    void *block;
    Status s = mem_alloc(&block, plan->ranks, sizeof(Child), "processes of ranks");
    if (s != STATUS_OK) return cli_fail(s);
    l.children = block;
    sigemptyset(&wanted);
    const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGCHLD};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) sigaddset(&wanted, numbers[i]);
    (void)sigprocmask(SIG_BLOCK, &wanted, &before);
    s = start(&l, &before);
    int code = s == STATUS_OK ? 0 : cli_fail(s);
    if (s != STATUS_OK) send_all(&l, SIGKILL);
    wait_all(&l, &wanted);
    if (code == 0) code = exit_code(&l);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    mem_free(l.children);
    return code;
}
