/* ttv ckpt diff: where two checkpoints differ, tensor by tensor and in what they say of themselves.
 */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/inspect.h"
#include "tools/model_io.h"

enum { NAME_BYTES = 400, VALUE_BYTES = 80, SHAPE_BYTES = 96 };

typedef struct DiffOptions {
    int weights; /* WeightsChoice */
    double tolerance;
    int64_t limit;
} DiffOptions;

static DiffOptions options;

#define FIELD(name) offsetof(DiffOptions, name)
static const Option diff_options[] = {
    {"tolerance", OPTION_FLOAT, FIELD(tolerance), "0", 0, 1e30, NULL, "tolerance",
     "tensors count as equal up to |a-b| = X |a| (Euclidean norms)"},
    {"limit", OPTION_INT, FIELD(limit), "20", 0, 1e9, NULL, "limit",
     "tensors to list, those that differ most; 0: all that differ"},
    {"weights", OPTION_CHOICE, FIELD(weights), "auto", 0, 0, WEIGHTS_CHOICES, "weights",
     WEIGHTS_HELP},
    {0},
};

static const Section *sections(int *count) {
    static Section list[1];
    list[0] = (Section){"diff", diff_options, &options};
    *count = 1;
    return list;
}

/* Of a tensor that one file lacks, or that has another shape there, the numbers are NAN. */
typedef struct TensorDiff {
    const SafeEntry *a, *b; /* NULL: not there */
    int64_t differing;
    double largest, relative; /* max |a-b|, |a-b| / |a|; infinite where a value is not finite */
} TensorDiff;

typedef struct Diff {
    char *paths[2];
    SafeFile *files[2];
    TensorDiff *rows; /* of tensors that differ, the most first */
    int64_t count, tensors;
} Diff;

/* ---- comparing ---- */

static TensorDiff compare_values(const SafeEntry *a, const SafeEntry *b) {
    TensorDiff d = {.a = a, .b = b};
    const int64_t count = (int64_t)(a->bytes / dtype_size(a->dtype));
    double squares = 0, norm = 0;
    if (a->dtype == b->dtype && memcmp(a->data, b->data, a->bytes) == 0) return d;
    for (int64_t i = 0; i < count; i++) {
        const double x = entry_value(a, i), y = entry_value(b, i), gap = fabs(x - y);
        norm += x * x;
        if (x == y || (isnan(x) && isnan(y))) continue;
        d.differing++;
        if (!(gap <= d.largest)) d.largest = isnan(gap) ? INFINITY : gap;
        squares += gap * gap;
    }
    if (d.differing > 0) d.relative = isfinite(d.largest) ? sqrt(squares / norm) : INFINITY;
    if (isnan(d.relative)) d.relative = INFINITY;
    return d;
}

static bool counts(const TensorDiff *d) {
    return !d->a || !d->b || isnan(d->largest) ||
           (d->differing > 0 && !(d->relative <= options.tolerance));
}

static void add(Diff *d, TensorDiff row) {
    d->tensors++;
    if (counts(&row)) d->rows[d->count++] = row;
}

static int most_first(const void *a, const void *b) {
    const TensorDiff *x = a, *y = b;
    const bool odd_x = isnan(x->relative), odd_y = isnan(y->relative);
    if (odd_x != odd_y) return odd_x ? -1 : 1;
    if (!odd_x && x->relative != y->relative) return x->relative > y->relative ? -1 : 1;
    const char *left = (x->a ? x->a : x->b)->name, *right = (y->a ? y->a : y->b)->name;
    return strcmp(left, right);
}

static Status compare(Diff *d) {
    const SafeFile *a = d->files[0], *b = d->files[1];
    void *block;
    TRY(mem_alloc(&block, safetensors_count(a) + safetensors_count(b) + 1, sizeof *d->rows,
                  "tensors to compare"));
    d->rows = block;
    for (int64_t i = 0; i < safetensors_count(a); i++) {
        const SafeEntry *x = safetensors_at(a, i), *y = safetensors_find(b, x->name);
        if (y && entry_same_shape(x, y))
            add(d, compare_values(x, y));
        else
            add(d, (TensorDiff){x, y, 0, NAN, NAN});
    }
    for (int64_t i = 0; i < safetensors_count(b); i++) {
        const SafeEntry *y = safetensors_at(b, i);
        if (!safetensors_find(a, y->name)) add(d, (TensorDiff){NULL, y, 0, NAN, NAN});
    }
    qsort(d->rows, (size_t)d->count, sizeof *d->rows, most_first);
    return STATUS_OK;
}

/* ---- text ---- */

static void print_row(const TensorDiff *r) {
    char name[NAME_BYTES], shapes[2][SHAPE_BYTES];
    const SafeEntry *e = r->a ? r->a : r->b;
    text_printable(e->name, name, sizeof name);
    entry_shape_text(e, shapes[0], sizeof shapes[0]);
    if (!r->a || !r->b) {
        out_printf("%-44s %-18s only in the %s\n", name, shapes[0], r->a ? "first" : "second");
    } else if (isnan(r->largest)) {
        entry_shape_text(r->b, shapes[1], sizeof shapes[1]);
        out_printf("%-44s %-18s %s in the second\n", name, shapes[0], shapes[1]);
    } else {
        out_printf("%-44s %-18s %lld of %lld differ, by %.3g at most, relative %.3g\n", name,
                   shapes[0], (long long)r->differing, (long long)(e->bytes / dtype_size(e->dtype)),
                   r->largest, r->relative);
    }
}

/* Lines of `text` that `other` lacks, each behind `mark`. */
static void print_lines(const char *text, const char *other, char mark) {
    char line[NAME_BYTES], shown[NAME_BYTES];
    while (*text) {
        const size_t n = strcspn(text, "\n"), kept = n < sizeof line ? n : sizeof line - 1;
        bool found = false;
        for (const char *at = other; *at && !found;) {
            const size_t m = strcspn(at, "\n");
            found = m == n && memcmp(at, text, n) == 0;
            at += m + (at[m] == '\n');
        }
        memcpy(line, text, kept);
        line[kept] = '\0';
        if (!found) out_printf("  %c %s\n", mark, text_printable(line, shown, sizeof shown));
        text += n + (text[n] == '\n');
    }
}

static void print_value(const char *key, const char *mine, const char *other) {
    char name[NAME_BYTES], text[2][VALUE_BYTES];
    if (mine && other && strchr(mine, '\n')) {
        out_printf("%s\n", text_printable(key, name, sizeof name));
        print_lines(mine, other, '-');
        print_lines(other, mine, '+');
        return;
    }
    out_printf("%s: %s | %s\n", text_printable(key, name, sizeof name),
               mine ? text_printable(mine, text[0], VALUE_BYTES) : "(none)",
               other ? text_printable(other, text[1], VALUE_BYTES) : "(none)");
}

static void print_metadata(const Diff *d) {
    const char *key, *value;
    for (int64_t i = 0; i < safetensors_meta_count(d->files[0]); i++) {
        safetensors_meta_at(d->files[0], i, &key, &value);
        const char *other = safetensors_meta(d->files[1], key);
        if (!other || strcmp(value, other) != 0) print_value(key, value, other);
    }
    for (int64_t i = 0; i < safetensors_meta_count(d->files[1]); i++) {
        safetensors_meta_at(d->files[1], i, &key, &value);
        if (!safetensors_meta(d->files[0], key)) print_value(key, NULL, value);
    }
}

static void print(const Diff *d) {
    const int64_t shown = options.limit > 0 && options.limit < d->count ? options.limit : d->count;
    for (int64_t i = 0; i < shown; i++) print_row(&d->rows[i]);
    if (shown < d->count)
        out_printf("and %lld more (--limit 0 lists all)\n", (long long)(d->count - shown));
    print_metadata(d);
    if (d->count == 0)
        out_printf("%lld tensors, all equal%s\n", (long long)d->tensors,
                   options.tolerance > 0 ? " within the tolerance" : "");
    else
        out_printf("%lld of %lld tensors differ\n", (long long)d->count, (long long)d->tensors);
}

/* ---- JSON ---- */

static void row_json(JsonWriter *w, const TensorDiff *r) {
    json_begin_object(w);
    json_pair_string(w, "name", (r->a ? r->a : r->b)->name);
    json_pair_bool(w, "in_first", r->a != NULL);
    json_pair_bool(w, "in_second", r->b != NULL);
    if (r->a && r->b && !isnan(r->largest)) {
        json_pair_int(w, "values", (int64_t)(r->a->bytes / dtype_size(r->a->dtype)));
        json_pair_int(w, "differing", r->differing);
        json_pair_number(w, "largest", r->largest);
        json_pair_number(w, "relative", r->relative);
    }
    json_end_object(w);
}

static void metadata_json(JsonWriter *w, const Diff *d) {
    const char *key, *value;
    for (int64_t side = 0; side < 2; side++)
        for (int64_t i = 0; i < safetensors_meta_count(d->files[side]); i++) {
            safetensors_meta_at(d->files[side], i, &key, &value);
            const char *other = safetensors_meta(d->files[1 - side], key);
            if (other && (side == 1 || strcmp(value, other) == 0)) continue;
            json_begin_object(w);
            json_pair_string(w, "key", key);
            if (side == 0 || other) json_pair_string(w, "first", side == 0 ? value : other);
            if (side == 1 || other) json_pair_string(w, "second", side == 1 ? value : other);
            json_end_object(w);
        }
}

static Status print_json(const Diff *d) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "first", d->paths[0]);
    json_pair_string(&w, "second", d->paths[1]);
    json_pair_bool(&w, "equal", d->count == 0);
    json_pair_int(&w, "tensors", d->tensors);
    json_pair_int(&w, "differ", d->count);
    json_key(&w, "differences");
    json_begin_array(&w);
    for (int64_t i = 0; i < d->count; i++) row_json(&w, &d->rows[i]);
    json_end_array(&w);
    json_key(&w, "metadata");
    json_begin_array(&w);
    metadata_json(&w, d);
    json_end_array(&w);
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

static int run(Config *config, int argc, char **argv) {
    (void)config;
    Diff d = {0};
    Status s = STATUS_OK;
    if (argc != 2) return cli_usage(&command_ckpt_diff, "two checkpoints are expected");
    for (int i = 0; i < 2 && s == STATUS_OK; i++) {
        s = weights_resolve(argv[i], (WeightsChoice)options.weights, &d.paths[i]);
        if (s == STATUS_OK) s = safetensors_open(d.paths[i], &d.files[i]);
    }
    if (s == STATUS_OK) s = compare(&d);
    if (s == STATUS_OK && common.json) s = print_json(&d);
    if (s == STATUS_OK && !common.json) print(&d);
    const bool equal = d.count == 0;
    mem_free(d.rows);
    for (int i = 0; i < 2; i++) {
        if (d.files[i]) safetensors_close(d.files[i]);
        mem_free(d.paths[i]);
    }
    return s != STATUS_OK ? cli_fail(s) : equal ? 0 : EXIT_NEGATIVE;
}

const Command command_ckpt_diff = {
    .name = "ckpt diff",
    .aliases = "checkpoint diff",
    .summary = "tell where two checkpoints differ; exit code 1 when their tensors do",
    .synopsis = "ttv ckpt diff [--tolerance X] [--limit N] [--json] A B",
    .examples = "  ttv ckpt diff runs/digits model.safetensors\n"
                "  ttv ckpt diff --tolerance 1e-2 whole.safetensors half.safetensors\n",
    .sections = sections,
    .run = run,
};
