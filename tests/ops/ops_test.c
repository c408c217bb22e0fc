/* ops_test [--device cpu|cuda[:n]] [--once | --bench [--cpu-time]] [--list] [SLOT...]: runs the op
 * table.
 *
 * Without --bench: every case against the naive version, on another device also against the CPU;
 * fails when a slot is NULL or has no case. --once: every case runs once, only guard bytes and
 * inputs are looked at; for slow tools such as compute-sanitizer. Exit 77 when the device does not
 * exist.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static const OpCase *const tables[] = {
    cases_elementwise,   cases_matmul, cases_norm,      cases_dwconv,      cases_tokens,
    cases_prepare,       cases_loss,   cases_optim,     cases_vittt,       cases_lact,
    cases_newton_schulz, cases_decay,  cases_attention, cases_fast_weights};
#define TABLES (sizeof tables / sizeof tables[0])

typedef struct Options {
    const char *device;
    bool bench, list, once;
    char **slots;
    int slot_count;
} Options;

typedef struct Totals {
    int64_t cases, runs, failures;
} Totals;

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
                covered = covered || (strcmp(c->slot, name) == 0 && !(c->flags & ONLY_BENCH));
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
static void check_case(const OpCase *item, DType act, Device *device, Device *cpu, bool once,
                       Totals *totals) {
    int modes = 1;
    for (int mode = 0; mode < modes; mode++) {
        Run run;
        bool good = run_case(&run, item, device, act, mode, !once, 1);
        if (mode == 0 && run.grads) modes = run.grads > 1 ? GRAD_MODES : GRAD_MODES_PLAIN;
        if (good && once) {
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

static void run_tables(const Options *o, Device *device, Device *cpu, Totals *totals) {
    for (size_t t = 0; t < TABLES; t++) {
        for (const OpCase *c = tables[t]; c->slot; c++) {
            if (!slot_wanted(o, c->slot)) continue;
            if (((c->flags & ONLY_BENCH) != 0) != o->bench) continue;
            totals->cases++;
            for (int dtype = 0; dtype < 2; dtype++) {
                const DType act = dtype ? DTYPE_BF16 : DTYPE_F32;
                if (!(c->flags & (dtype ? IN_BF16 : IN_F32))) continue;
                if (o->bench) {
                    bench_case(c, act, device);
                } else {
                    check_case(c, act, device, cpu, o->once, totals);
                }
            }
        }
    }
}

static bool parse(int argc, char **argv, Options *o) {
    *o = (Options){.device = "cpu"};
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--bench") == 0) {
            o->bench = true;
        } else if (strcmp(argv[i], "--once") == 0) {
            o->once = true;
        } else if (strcmp(argv[i], "--cpu-time") == 0) {
            bench_clock = CLOCK_PROCESS_CPUTIME_ID;
        } else if (strcmp(argv[i], "--list") == 0) {
            o->list = true;
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            o->device = argv[++i];
        } else {
            return false;
        }
    }
    o->slots = argv + i;
    o->slot_count = argc - i;
    return true;
}

int main(int argc, char **argv) {
    Options o;
    if (!parse(argc, argv, &o)) {
        fputs("usage: ops_test [--device cpu|cuda[:n]] [--once | --bench [--cpu-time]] [--list] "
              "[SLOT...]\n",
              stderr);
        return 2;
    }
    if (o.list) {
        for (int i = 0; i < kernels_slot_count(); i++) puts(kernels_slot_name(i));
        return 0;
    }
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
    run_tables(&o, device, cpu, &totals);
    printf("%lld cases, %lld runs, %lld failed on %s\n", (long long)totals.cases,
           (long long)totals.runs, (long long)totals.failures, device->name);
    device_close(cpu);
    device_close(device);
    return covered && totals.failures == 0 ? 0 : 1;
}
