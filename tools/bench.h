/* The parts of `ttv bench`: kernels at real ViTTT shapes, whole passes of a ViTTT and of a
 * LaCT-NVS, the image loader.
 *
 * Every part measures on one open Device, prints a table (or adds an object to the JSON document)
 * and compares with a ceiling measured in the same run. Times are medians of samples that end in
 * device_sync.
 */
#ifndef TTV_TOOLS_BENCH_H
#define TTV_TOOLS_BENCH_H

#include "core/json.h"
#include "datasets/transform.h"
#include "kernels/kernels.h"
#include "tools/sections.h"

/* Section [bench]. The model comes from [model]; a configuration file may hold [data], [preprocess]
 * and [augment] for the loader. */
typedef struct BenchOptions {
    int64_t batch;            /* images per pass and per loader batch */
    double seconds;           /* time spent on one measurement */
    int64_t images;           /* loader: pictures made when there is no data set */
    int64_t workers;          /* loader threads; 0: all processors */
    char data[CONFIG_TEXT];   /* loader: data set; "": [data] root, else pictures of own making */
    char filter[CONFIG_TEXT]; /* ops: only kernels whose name holds this */
    int64_t inputs, targets;  /* nvs: views of a scene */
    char tokens[CONFIG_TEXT]; /* ttt: sequence lengths */
    int64_t fast_heads, head_width, chunk; /* ttt */
    bool composed, profile;                /* ttt */
    char output[CONFIG_TEXT];              /* ttt: where table and plot go; "": nowhere */
} BenchOptions;

enum { BENCH_COPIES = 5 };

typedef struct Bench {
    const BenchOptions *options;
    const Config *config;     /* the user's, for model_create */
    const VitttConfig *model; /* resolved */
    Device *device;           /* of ops; step opens its own models */
    DType act;
    JsonWriter *json;  /* NULL: print tables */
    double peak_flops; /* measured product ceiling in `act`, FLOP/s; 0: not yet measured */
    double peak_bytes[BENCH_COPIES]; /* measured copy ceilings, bytes/s, by bytes moved */
} Bench;

/* ---- bench_ceilings.c ---- */

/* Measures the ceilings once: a square product in `act`, and copies of growing size, because what
 * fits into a cache moves faster. */
Status bench_ceilings(Bench *b);
/* The copy ceiling for a kernel that moves that many bytes. On a card the best of all copies: there
 * the data of kernels and copies is rotated and never comes from the cache. */
double bench_copy_ceiling(const Bench *b, double bytes);
/* One line; or an object "ceilings". */
void bench_report_ceilings(const Bench *b);

/* Sets of tensors to go through in turn, so that a call that moves `bytes` never finds its data in
 * a card's cache: 1 on the CPU, where models of that size live in the caches. At most `most`. */
int64_t bench_sets(const Device *d, double bytes, int64_t most);

Status bench_ops(Bench *b);
Status bench_step(Bench *b);
Status bench_nvs(Bench *b);
Status bench_ttt(Bench *b);
Status bench_loader(Bench *b);

/* ---- bench_time.c ---- */

/* Median seconds of one call of f, after a warm-up call, within about `seconds`. Short calls are
 * timed in groups. */
typedef Status (*BenchCall)(void *user);
Status bench_time(Device *d, BenchCall f, void *user, double seconds, double *median_s);

/* The same without the time that launching takes: where the device can record, calls of f, a
 * multiple of `rotation`, become a graph whose replays are timed. f calls kernels alone. */
Status bench_time_recorded(Device *d, BenchCall f, void *user, int64_t rotation, double seconds,
                           double *median_s);
/* Records one call of f that has run before; free with device_graph_free. */
Status bench_record(Device *d, BenchCall f, void *user, int64_t calls, DeviceGraph **out);

/* Median of n > 0 values; sorts them. */
double bench_median(double *values, int64_t n);

/* Writes a tar file of `count` JPEG pictures of 500x375 (train/0/00000.jpg, ...) with the
 * statistics of photographs: gradients, noise on every scale, about 82 KB each. */
Status bench_pictures(const char *path, int64_t count);

/* A number of a result, six digits. */
void bench_number(JsonWriter *w, const char *key, double value);

/* Monotonic clock in seconds. */
double bench_clock(void);

/* Writes FLOP/s with the unit that suits the device, 14 characters wide: "  123.4 GFLOP/s". */
const char *bench_flops_text(const Device *d, double flops, char *text, size_t size);

/* Fills a device tensor with reproducible values in (0.05, 0.95) (U8: 0..255, I64: 0). */
Status bench_fill(Device *d, Tensor t, uint64_t seed);

/* A new copy of a device tensor on the host, to be staged again and again; the caller frees it
 * with mem_free. STATUS_MEMORY names `what`. */
Status bench_pull(Device *d, Tensor t, void **host, const char *what);

#endif
