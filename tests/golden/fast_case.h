/* What the cases of fastweight/ share: JSON configuration, inputs by name, the loss sum(out cot) +
 * sum(end cot_end), limits (fastweight.md 9), gradients of every input. */
#ifndef TTV_TESTS_GOLDEN_FAST_CASE_H
#define TTV_TESTS_GOLDEN_FAST_CASE_H

#include <cjson/cJSON.h>

#include "golden.h"

#define FAST_INPUTS 64

/* One input tensor of the file. */
typedef struct FastInput {
    char name[64];
    Var *v;
} FastInput;

typedef struct FastCase {
    Golden *g;
    Tape *t;
    cJSON *config;
    FastInput inputs[FAST_INPUTS];
    int count;
    double floor;         /* of gradients */
    double out32, grad32; /* limits of the family in F32 */
    double out16, grad16; /* in BF16; TF32 has a quarter */
} FastCase;

bool fast_family_is(const SafeFile *f, const char *family);

/* Opens the tape and reads all inputs, every one but the cotangents with a gradient. */
Status fast_begin(FastCase *c, Golden *g);
/* The same without gradients. */
Status fast_begin_values(FastCase *c, Golden *g);
void fast_end(FastCase *c);

/* The input <prefix><name>, or NULL. */
Var *fast_find(const FastCase *c, const char *prefix, const char *name);

const char *fast_text(const FastCase *c, const char *key, const char *absent);
double fast_number(const FastCase *c, const char *key, double absent);
bool fast_flag(const FastCase *c, const char *key);
const char *fast_text_of(const cJSON *o, const char *key, const char *absent);
double fast_number_of(const cJSON *o, const char *key, double absent);
bool fast_flag_of(const cJSON *o, const char *key);
/* Index of `word` among `names`, which NULL ends; -1 when absent. */
int fast_index_of(const char *word, const char *const *names);

/* Compares `out` and, under end.<name>, what is not NULL. */
Status fast_compare_out(FastCase *c, const char *form, Var *out);
Status fast_compare_end(FastCase *c, const char *form, const char *name, Var *end);
/* loss + sum(x cot_end.<name>) where the file has that. */
Var *fast_loss(FastCase *c, Var *out);
Var *fast_loss_end(FastCase *c, Var *loss, const char *name, Var *end);
/* Backward, then grad.<input> of every input. */
Status fast_compare_gradients(FastCase *c, const char *form, Var *loss);

#endif
