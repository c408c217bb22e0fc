/* CSV rows through an atomic writer. */
#include "tools/results_csv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/csv.h"
#include "tools/predict.h"

struct ResultsCsv {
    FileWriter *writer;
    Status status;
};

static void put(ResultsCsv *r, const char *text, size_t size) {
    if (r->status == STATUS_OK) r->status = file_writer_write(r->writer, text, size);
}

static void put_field(ResultsCsv *r, const char *text) {
    if (r->status == STATUS_OK) r->status = csv_field_write(r->writer, text);
}

Status results_csv_open(const char *path, ResultsCsv **out) {
    static const char heading[] =
        "index,path,label,class,prediction,predicted_class,probability,rank,loss\r\n";
    void *memory;
    TRY(mem_alloc(&memory, 1, sizeof(ResultsCsv), "results file"));
    ResultsCsv *r = memory;
    Status s = file_writer_open(path, &r->writer);
    if (s != STATUS_OK) {
        mem_free(r);
        return s;
    }
    put(r, heading, sizeof heading - 1);
    *out = r;
    return STATUS_OK;
}

void results_csv_batch(ResultsCsv *r, const Dataset *d, const ClassList *classes,
                       const HostBatch *b, const float *logits) {
    char text[160];
    for (int64_t i = 0; i < b->count && r->status == STATUS_OK; i++) {
        const float *row = logits + i * classes->count;
        int64_t label = b->labels[i], best;
        snprintf(text, sizeof text, "%lld,", (long long)b->samples[i]);
        put(r, text, strlen(text));
        put_field(r, dataset_name(d, b->samples[i]));
        snprintf(text, sizeof text, ",%lld,", (long long)label);
        put(r, text, strlen(text));
        put_field(r, classes->names[label]);
        if (b->valid && !b->valid[i]) {
            put(r, ",,,,,\r\n", 7);
            continue;
        }
        top_k(row, classes->count, 1, &best);
        snprintf(text, sizeof text, ",%lld,", (long long)best);
        put(r, text, strlen(text));
        put_field(r, classes->names[best]);
        snprintf(text, sizeof text, ",%.9g,%lld,%.9g\r\n",
                 exp(-loss_row(row, classes->count, best)),
                 (long long)label_rank(row, classes->count, label) + 1,
                 loss_row(row, classes->count, label));
        put(r, text, strlen(text));
    }
}

Status results_csv_commit(ResultsCsv *r) {
    Status s = r->status;
    if (s == STATUS_OK)
        s = file_writer_commit(r->writer);
    else
        file_writer_abort(r->writer);
    mem_free(r);
    return s;
}

void results_csv_abort(ResultsCsv *r) {
    if (!r) return;
    file_writer_abort(r->writer);
    mem_free(r);
}
