/* golden_check: one program for all golden vectors.
 *
 * A golden file is a .safetensors of inputs and of the outputs that an independent float64
 * reference gave. Each kind of file has one source file here with a GoldenKind: how to recognise
 * it, and how to run what it describes. A run reads tensors with golden_read() and hands results to
 * golden_compare(); every tensor of the file must be read, compared or skipped aloud, so that
 * nothing passes unseen.
 */
#ifndef TTV_TESTS_GOLDEN_GOLDEN_H
#define TTV_TESTS_GOLDEN_GOLDEN_H

#include "core/safetensors.h"
#include "nn/params.h"
#include "nn/tape.h"

typedef enum GoldenPrecision { GOLDEN_FP32, GOLDEN_TF32, GOLDEN_BF16 } GoldenPrecision;

/* One file being checked. */
typedef struct Golden {
    const SafeFile *file;
    Device *device;
    GoldenPrecision precision;
    DType act;           /* activations: BF16 or F32 */
    unsigned char *seen; /* per tensor of the file */
    double limits[3];    /* largest error that passes, by GoldenPrecision; 0: the usual */
    double cosine;       /* in BF16 also passes what has a larger cosine with the file's; 0: nothing
                            does */
    int64_t checked, failed, skipped;
    double worst;
    char worst_name[256];
} Golden;

typedef struct GoldenKind {
    const char *name;
    bool (*recognise)(const SafeFile *f);
    /* A Status other than OK: the file or the program cannot do it at all (missing tensor, no
     * memory). Values off the mark are no Status but counted by golden_compare(). */
    Status (*run)(Golden *g);
} GoldenKind;

/* NULL-terminated. */
extern const GoldenKind *const golden_kinds[];
extern const GoldenKind golden_kind_vittt, golden_kind_image, golden_kind_lact_layer,
    golden_kind_lact_nvs, golden_kind_newton_schulz;
extern const GoldenKind golden_kind_graph, golden_kind_chunked, golden_kind_lact_causal,
    golden_kind_fast_vittt, golden_kind_distance, golden_kind_weight_norm, golden_kind_identity;

/* A tensor of the file in double precision; free with mem_free(values). Of more than four
 * dimensions the first ones are folded into one. */
typedef struct GoldenArray {
    double *values;
    int64_t count;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
} GoldenArray;

/* STATUS_DATA when the tensor is absent. Marks it as seen. `name` is printf style. */
Status golden_read(Golden *g, GoldenArray *out, const char *name, ...)
    __attribute__((format(printf, 3, 4)));
/* The entry itself (8-bit images), seen from now on; STATUS_DATA when absent. */
Status golden_entry(Golden *g, const SafeEntry **out, const char *name);
bool golden_has(const Golden *g, const char *prefix); /* any tensor whose name starts so */
/* A whole number from __metadata__. */
Status golden_meta_int(const Golden *g, const char *key, int64_t *out);

/* Copies an array to the device as F32 or BF16, in memory of the tape's pass. */
Status golden_push(Tape *t, const GoldenArray *a, DType dtype, Tensor *out);
/* Fills every parameter from <prefix><name>. */
Status golden_fill_params(Golden *g, Params *p, const char *prefix);

/* Compares a device tensor (F32 or BF16) with the tensor `name`: norm-wise relative error, against
 * max(norm, floor). `form` says which implementation. Prints one line. */
Status golden_compare(Golden *g, const char *name, const char *form, Tensor actual, double floor);
/* Bytes that must be equal. */
Status golden_compare_bytes(Golden *g, const char *name, const uint8_t *actual, int64_t count);
/* One number of the file, and the largest absolute difference that passes. */
Status golden_compare_number(Golden *g, const char *name, double actual, double tolerance);
/* 1e-3 of the largest norm among the tensors that start with `prefix`: gradients below it are
 * noise. */
Status golden_gradient_floor(Golden *g, const char *prefix, double *floor);
/* Every parameter's gradient against <prefix><name>. */
Status golden_check_gradients(Golden *g, Params *p, const char *prefix, const char *form,
                              double floor);
/* sum(y * dy) as F32 [1]. */
Var *golden_weighted_sum(Tape *t, Var *y, Tensor dy);
/* Says aloud that the tensors starting with `prefix` are not checked; nothing when there are none.
 */
void golden_skip(Golden *g, const char *prefix, const char *reason);

/* Limits of the comparisons to come; 0: the usual ones. */
void golden_set_limits(Golden *g, double fp32, double tf32, double bf16);
/* Largest error that passes. */
double golden_tolerance(const Golden *g);

/* One line per tensor that nobody looked at; each counts as failed. */
void golden_finish(Golden *g);

#endif
