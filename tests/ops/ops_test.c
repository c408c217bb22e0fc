/* ops_test [flags] [SLOT...]: runs the op table.
 *
 * Without --bench: every case against the naive version, on another device also against the CPU;
 * fails when a slot is NULL or has no case.
 *
 *   --device D      cpu, cuda, cuda:N
 *   --once          every case runs once, only guard bytes and inputs are looked at; for slow tools
 *                   such as compute-sanitizer
 *   --first-mode    of the Grad modes only the first, where all outputs are written
 *   --part K/N      the K-th (from 0) of N parts of the table: several processes share the work
 *   --queue FILE    the same, but each takes the next case when it is through with one; FILE is
 *                   made for all of them and must not be there before
 *   --seconds S     no case begins later than that; what is left counts as not finished. The first
 *                   case of every slot comes first, then what is slow, then by turns of the slots
 *   --verbose       a line when a case begins in a dtype, one with its milliseconds when it ends
 *   --bench         times the large cases; --cpu-time: by the time of this process alone
 *   --list          the slots' names
 *
 * Exit 0, 1 a failure, 2 usage, 77 no such device, 124 no failure but not finished.
 */
#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "harness.h"
#include "queue.h"

static const OpCase *const tables[] = {
    cases_elementwise, cases_matmul,        cases_norm,  cases_dwconv,    cases_tokens,
    cases_prepare,     cases_loss,          cases_optim, cases_vittt,     cases_vittt_dwc,
    cases_lact,        cases_newton_schulz, cases_decay, cases_attention, cases_fast_weights,
    cases_weight_step, cases_chunk,         cases_view,  cases_stages,    cases_norm_fold,
    cases_token_basis};
#define TABLES (sizeof tables / sizeof tables[0])

typedef struct Options {
    const char *device, *queue;
    bool bench, list, once, first_mode, verbose;
    int part, parts;
    double seconds; /* 0: no limit */
    char **slots;
    int slot_count;
} Options;

typedef struct Totals {
    int64_t cases, runs, failures;
} Totals;

/* One case in one dtype. */
typedef struct Unit {
    const OpCase *item;
    DType act;
    bool first; /* dtype of this case */
    int turn;   /* how many cases of this slot stand before it */
    int index;
    bool slow; /* takes seconds under compute-sanitizer */
} Unit;
#define UNITS 4096

static bool slot_wanted(const Options *o, const char *slot) {
    for (int i = 0; i < o->slot_count; i++) {
        if (strcmp(o->slots[i], slot) == 0) return true;
    }
    return o->slot_count == 0;
}

static bool check_coverage(const Kernels *k) {
    bool good = true;
    for (int i = 0; i < kernels_slot_count(); i++) {
        const char *name = kernels_slot_name(i);
        bool covered = false;
        for (size_t t = 0; t < TABLES; t++) {
            for (const OpCase *c = tables[t]; c->slot; c++)
                covered = covered ||
                          (strcmp(c->slot, name) == 0 && !(c->flags & (ONLY_BENCH | ONLY_CARDS)));
        }
        if (!kernels_slot(k, i)) printf("FAIL kernels_%s: slot %s is NULL\n", k->name, name);
        if (!covered) printf("FAIL slot %s has no case in the op table\n", name);
        good = good && covered && kernels_slot(k, i);
    }
    return good;
}

/* The second run of a case: the same bits, for some kernels also with another number of threads. */
static bool check_repeat(const Run *first, Device *device) {
    Run again;
    const int threads = omp_get_max_threads();
    if (first->item->flags & ANY_THREADS) omp_set_num_threads(threads == 1 ? 3 : 1);
    bool good = run_case(&again, first->item, device, first->act, first->grad_mode, false, 1);
    omp_set_num_threads(threads);
    good = good && run_same_bits(first, &again);
    run_end(&again);
    return good;
}

static bool check_parity(const Run *run, Device *cpu) {
    Run other;
    const bool good = run_case(&other, run->item, cpu, run->act, run->grad_mode, false, 1) &&
                      run_matches_run(run, &other);
    run_end(&other);
    return good;
}

/* All Grad modes of one case in one dtype. cpu: the device to compare with, or NULL. */
static void check_case(const Options *o, const OpCase *item, DType act, Device *device, Device *cpu,
                       Totals *totals) {
    int modes = 1;
    for (int mode = 0; mode < modes; mode++) {
        Run run;
        bool good = run_case(&run, item, device, act, mode, !o->once, 1);
        if (mode == 0 && run.grads && !o->first_mode)
            modes = run.grads > 1 ? GRAD_MODES : GRAD_MODES_PLAIN;
        if (good && o->once) {
            good = run_is_clean(&run);
        } else if (good) {
            good = run_is_clean(&run);
            good = run_matches_reference(&run) && good;
            good = check_repeat(&run, device) && good;
            if (cpu) good = check_parity(&run, cpu) && good;
        }
        totals->runs++;
        if (!good) totals->failures++;
        run_end(&run);
    }
}

static void bench_case(const OpCase *item, DType act, Device *device) {
    Run run;
    char label[256];
    if (run_case(&run, item, device, act, 0, false, 3)) {
        const int64_t repeats = (int64_t)(0.2 / (run.seconds + 1e-7)) + 3;
        run_end(&run);
        if (run_case(&run, item, device, act, 0, false, repeats)) {
            run_label(&run, label, sizeof label);
            printf("%-52s %10.4f ms %8.1f GB/s %8.1f GFLOP/s\n", label, 1e3 * run.seconds,
                   1e-9 * run.bytes / run.seconds, 1e-9 * run.flops / run.seconds);
        }
    }
    run_end(&run);
}

/* Cases of this slot in front of table t, row c. */
static int cases_before(size_t t, const OpCase *c) {
    int count = 0;
    for (size_t i = 0; i <= t; i++)
        for (const OpCase *e = tables[i]; e->slot && e != c; e++)
            count += strcmp(e->slot, c->slot) == 0;
    return count;
}

/* Slots whose cases take longest there: 2 to 18 s each on an H200, of all others 98 % below 1 s. */
static bool is_slow(const char *slot) {
    static const char *const names[] = {"attention_backward", "newton_schulz", "vittt_glu_backward",
                                        "view_blocks",        "vittt_glu",     "attention"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(slot, names[i]) == 0) return true;
    }
    return false;
}

/* Every slot's first case, then what is slow, so that nobody waits for one of these in the end,
 * then by turns. */
static int by_turn(const void *a, const void *b) {
    const Unit *x = a, *y = b;
    const bool x_slow = x->turn && x->slow, y_slow = y->turn && y->slow;
    if (!x->turn != !y->turn) return x->turn ? 1 : -1;
    if (x_slow != y_slow) return x_slow ? -1 : 1;
    return x->turn != y->turn ? x->turn - y->turn : x->index - y->index;
}

/* What this process has to run, in order. */
static int list_units(const Options *o, bool card, Unit units[UNITS]) {
    int all = 0, count = 0;
    for (size_t t = 0; t < TABLES; t++) {
        for (const OpCase *c = tables[t]; c->slot; c++) {
            if (!slot_wanted(o, c->slot)) continue;
            if (((c->flags & ONLY_BENCH) != 0) != o->bench) continue;
            if (c->flags & ONLY_CARDS && !card) continue;
            for (int dtype = 0; dtype < 2; dtype++) {
                const DType act = dtype ? DTYPE_BF16 : DTYPE_F32;
                if (!(c->flags & (dtype ? IN_BF16 : IN_F32))) continue;
                /* Shifted from round to round, or the slow F32 cases would share every second part.
                 */
                const int part = (all + all / o->parts) % o->parts;
                all++;
                if (part != o->part) continue;
                if (count == UNITS) abort();
                units[count] = (Unit){c,
                                      act,
                                      !dtype || !(c->flags & IN_F32),
                                      cases_before(t, c),
                                      count,
                                      is_slow(c->slot)};
                count++;
            }
        }
    }
    if (o->seconds > 0 || o->queue) qsort(units, (size_t)count, sizeof units[0], by_turn);
    return count;
}

static void run_unit(const Options *o, const Unit *u, Device *device, Device *cpu, Totals *totals) {
    const double start = seconds_now();
    const Run label_only = {.item = u->item, .act = u->act};
    char label[256];
    run_label(&label_only, label, sizeof label);
    if (o->verbose) printf("begun %s\n", label);
    if (o->bench)
        bench_case(u->item, u->act, device);
    else
        check_case(o, u->item, u->act, device, cpu, totals);
    totals->cases += u->first;
    if (o->verbose) printf("ran %s: %.0f ms\n", label, 1e3 * (seconds_now() - start));
}

/* False: the time was up. */
static bool run_units(const Options *o, Device *device, Device *cpu, Totals *totals) {
    static Unit units[UNITS];
    const int count = list_units(o, device->kind != DEVICE_CPU, units);
    const double begun = seconds_now();
    for (int i = 0;; i++) {
        const bool late = o->seconds > 0 && seconds_now() - begun > o->seconds;
        if (o->queue) i = queue_take(o->queue, count, late);
        if (i < 0) {
            printf("FAIL queue %s: %s\n", o->queue, strerror(errno));
            totals->failures++;
        }
        if (i < 0 || i >= count) return true;
        if (late) {
            printf("not finished: %d of %d cases and dtypes\n", i, count);
            return false;
        }
        run_unit(o, &units[i], device, cpu, totals);
    }
}

static bool parse_part(const char *text, Options *o) {
    char end;
    return sscanf(text, "%d/%d%c", &o->part, &o->parts, &end) == 2 && o->parts > 0 &&
           o->part >= 0 && o->part < o->parts;
}

static bool parse_switch(const char *flag, Options *o) {
    const struct {
        const char *name;
        bool *at;
    } switches[] = {{"--bench", &o->bench},
                    {"--once", &o->once},
                    {"--first-mode", &o->first_mode},
                    {"--verbose", &o->verbose},
                    {"--list", &o->list}};
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        if (strcmp(flag, switches[i].name) != 0) continue;
        *switches[i].at = true;
        return true;
    }
    if (strcmp(flag, "--cpu-time") != 0) return false;
    bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    return true;
}

static bool parse(int argc, char **argv, Options *o) {
    *o = (Options){.device = "cpu", .parts = 1};
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (parse_switch(argv[i], o)) continue;
        if (i + 1 == argc) return false;
        const char *flag = argv[i++];
        if (strcmp(flag, "--device") == 0)
            o->device = argv[i];
        else if (strcmp(flag, "--queue") == 0)
            o->queue = argv[i];
        else if (strcmp(flag, "--seconds") == 0)
            o->seconds = atof(argv[i]);
        else if (strcmp(flag, "--part") != 0 || !parse_part(argv[i], o))
            return false;
    }
    o->slots = argv + i;
    o->slot_count = argc - i;
    return o->seconds >= 0;
}

int main(int argc, char **argv) {
    Options o;
    if (!parse(argc, argv, &o)) {
        fputs("usage: ops_test [--device cpu|cuda[:n]] [--once] [--first-mode] [--part K/N]\n"
              "                [--queue FILE] [--seconds S] [--verbose] [--bench [--cpu-time]] "
              "[--list] [SLOT...]\n",
              stderr);
        return 2;
    }
    if (o.list) {
        for (int i = 0; i < kernels_slot_count(); i++) puts(kernels_slot_name(i));
        return 0;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* what is known must not be lost with a killed process */
    Device *device, *cpu = NULL;
    if (device_open(o.device, &device) != STATUS_OK) {
        printf("skipped: %s\n", status_message());
        return 77;
    }
    if (device->kind != DEVICE_CPU && device_open("cpu", &cpu) != STATUS_OK) {
        printf("FAIL: %s\n", status_message());
        return 1;
    }
    Totals totals = {0};
    const bool covered = o.bench || check_coverage(device->k);
    const bool finished = run_units(&o, device, cpu, &totals);
    printf("%lld cases, %lld runs, %lld failed on %s\n", (long long)totals.cases,
           (long long)totals.runs, (long long)totals.failures, device->name);
    device_close(cpu);
    device_close(device);
    if (!covered || totals.failures) return 1;
    return finished ? 0 : 124;
}
