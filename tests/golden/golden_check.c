/* golden_check FILE... [--device cpu|cuda[:N]] [--precision fp32|tf32|bf16]
 *
 * Exit: 0 all within tolerance, 1 something above it, 2 usage, 3 a file that cannot be read, is of
 * no known kind or lacks a tensor, 77 without the device. */
#include "golden.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"

enum { EXIT_ABOVE = 1, EXIT_USAGE = 2, EXIT_UNREADABLE = 3, EXIT_NO_DEVICE = 77 };

const GoldenKind *const golden_kinds[] = {&golden_kind_vittt,
                                          &golden_kind_image,
                                          &golden_kind_lact_layer,
                                          &golden_kind_lact_nvs,
                                          &golden_kind_newton_schulz,
                                          &golden_kind_graph,
                                          &golden_kind_chunked,
                                          &golden_kind_lact_causal,
                                          &golden_kind_fast_vittt,
                                          &golden_kind_distance,
                                          &golden_kind_weight_norm,
                                          &golden_kind_identity,
                                          NULL};

static const char usage[] =
    "usage: golden_check FILE... [--device cpu|cuda[:N]] [--precision fp32|tf32|bf16]\n"
    "Runs what each golden file describes and prints the largest relative error per tensor.\n"
    "Exit: 0 within tolerance, 1 above it, 2 usage, 3 a file that cannot be checked, 77 no such "
    "device.\n";

static const char *const precision_names[] = {"fp32", "tf32", "bf16"};

static const GoldenKind *kind_of(const SafeFile *f) {
    for (int i = 0; golden_kinds[i]; i++)
        if (golden_kinds[i]->recognise(f)) return golden_kinds[i];
    return NULL;
}

static Status run_file(Golden *g, const char *path) {
    const GoldenKind *kind = kind_of(g->file);
    if (!kind) {
        return status_set(STATUS_DATA, "no known kind of golden file (its metadata and tensor "
                                       "names match none of this program's)");
    }
    printf("%s: %s on %s, %s\n", path, kind->name, g->device->k->name,
           precision_names[g->precision]);
    void *seen;
    TRY(mem_alloc(&seen, safetensors_count(g->file), 1, "tensor marks"));
    g->seen = seen;
    Status s = kind->run(g);
    if (s == STATUS_OK) golden_finish(g);
    mem_free(seen);
    return s;
}

static void print_counts(const char *what, const Golden *g) {
    printf("%s: %lld checks, %lld failed, %lld tensors skipped; largest error %.2e%s%s%s\n", what,
           (long long)g->checked, (long long)g->failed, (long long)g->skipped, g->worst,
           g->worst_name[0] ? " (" : "", g->worst_name, g->worst_name[0] ? ")" : "");
}

static void add_counts(Golden *all, const Golden *g) {
    all->checked += g->checked;
    all->failed += g->failed;
    all->skipped += g->skipped;
    if (!(g->worst > all->worst)) return;
    all->worst = g->worst;
    memcpy(all->worst_name, g->worst_name, sizeof all->worst_name);
}

/* Exit code for one file; what it counted is added to `all`. */
static int check_file(const char *path, Device *device, GoldenPrecision precision, Golden *all) {
    SafeFile *file;
    if (safetensors_open(path, &file) != STATUS_OK) {
        fprintf(stderr, "golden_check: %s\n", status_message());
        return EXIT_UNREADABLE;
    }
    Golden g = {.file = file,
                .device = device,
                .precision = precision,
                .act = precision == GOLDEN_BF16 ? DTYPE_BF16 : DTYPE_F32};
    Status s = run_file(&g, path);
    safetensors_close(file);
    fflush(stdout);
    if (s != STATUS_OK) {
        fprintf(stderr, "golden_check: %s: %s\n", path, status_message());
        return EXIT_UNREADABLE;
    }
    if (g.checked == 0) {
        fprintf(stderr, "golden_check: %s: nothing in it could be checked\n", path);
        return EXIT_UNREADABLE;
    }
    print_counts(path, &g);
    add_counts(all, &g);
    return g.failed ? EXIT_ABOVE : 0;
}

static int find_precision(const char *name) {
    for (int i = 0; i < 3; i++)
        if (strcmp(name, precision_names[i]) == 0) return i;
    return -1;
}

int main(int argc, char **argv) {
    static const struct option flags[] = {{"device", required_argument, NULL, 'd'},
                                          {"precision", required_argument, NULL, 'p'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    const char *device_name = "cpu";
    int precision = GOLDEN_FP32, flag;
    while ((flag = getopt_long(argc, argv, "", flags, NULL)) != -1) {
        if (flag == 'h') return fputs(usage, stdout) < 0;
        if (flag == 'd') device_name = optarg;
        if (flag == 'p') precision = find_precision(optarg);
        if (flag == '?' || precision < 0) {
            if (precision < 0)
                fprintf(stderr, "golden_check: --precision %s: expected fp32, tf32 or bf16\n",
                        optarg);
            fputs(usage, stderr);
            return EXIT_USAGE;
        }
    }
    if (optind == argc) {
        fputs(usage, stderr);
        return EXIT_USAGE;
    }
    Device *device;
    Status opened = device_open(device_name, &device);
    if (opened != STATUS_OK) {
        fprintf(stderr, "golden_check: %s\n", status_message());
        return opened == STATUS_DEVICE ? EXIT_NO_DEVICE : EXIT_USAGE;
    }
    device->allow_tf32 = precision == GOLDEN_TF32;
    Golden all = {0};
    int worst = 0;
    for (int i = optind; i < argc; i++) {
        int code = check_file(argv[i], device, (GoldenPrecision)precision, &all);
        if (code > worst) worst = code;
    }
    if (argc - optind > 1) print_counts("all files", &all);
    device_close(device);
    return fflush(stdout) != 0 ? EXIT_UNREADABLE : worst;
}
