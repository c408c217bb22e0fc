/* `ttv bench step`: whole passes of a ViTTT with random weights, the memory that they take, and the
 * share of the product ceiling that they reach.
 */
#include "tools/bench_passes.h"

#include <stdio.h>
#include <string.h>

#include "tools/cli.h"
#include "vision/vittt.h"

PassResult *pass_add(PassResults *r, const char *what, int64_t batch, double macs) {
    PassResult *p = &r->pass[r->count++];
    *p = (PassResult){.what = what, .unit = "images", .batch = batch, .macs = macs};
    return p;
}

int64_t pass_growths(const Device *d) {
    return d->weights.growths + d->state.growths + d->step.growths + d->scratch.growths;
}

void pass_memory(const Device *d, PassMemory *out) {
    const Arena *arenas[4] = {&d->weights, &d->state, &d->step, &d->scratch};
    *out = (PassMemory){0};
    for (int i = 0; i < 4; i++) {
        out->name[i] = arenas[i]->name;
        out->peak[i] = (int64_t)arenas[i]->peak;
        out->total += (int64_t)arenas[i]->peak;
        out->reserved += (int64_t)arenas[i]->reserved;
    }
}

/* ---- report ---- */

void pass_report(const Bench *b, const PassResult *r) {
    double per_second = (double)r->batch / r->seconds;
    double flops = 2.0 * r->macs / r->seconds;
    char text[32], key[32];
    if (b->json) {
        json_key(b->json, r->what);
        json_begin_object(b->json);
        json_pair_int(b->json, "batch", r->batch);
        bench_number(b->json, "ms", 1e3 * r->seconds);
        snprintf(key, sizeof key, "%s_per_s", r->unit);
        bench_number(b->json, key, per_second);
        bench_number(b->json, "gflops", 1e-9 * flops);
        bench_number(b->json, "ceiling_share", flops / b->peak_flops);
        if (r->profiled) profile_report(b, "profile", &r->profile);
        json_end_object(b->json);
        return;
    }
    out_printf("%-12s batch %-4lld %9.3f ms %9.1f %s/s %s %4.0f %% of the product ceiling\n",
               r->what, (long long)r->batch, 1e3 * r->seconds, per_second,
               strcmp(r->unit, "images") == 0 ? "img" : r->unit,
               bench_flops_text(b->device, flops, text, sizeof text),
               100.0 * flops / b->peak_flops);
    if (r->profiled) profile_report(b, "profile", &r->profile);
}

void pass_report_memory(const Bench *b, const char *key, const PassMemory *m, bool training) {
    if (b->json) {
        json_key(b->json, key);
        json_begin_object(b->json);
        for (int i = 0; i < 4; i++) json_pair_int(b->json, m->name[i], m->peak[i]);
        json_pair_int(b->json, "total", m->total);
        json_pair_int(b->json, "reserved", m->reserved);
        if (training) json_pair_int(b->json, "allocations_after_step_1", m->late_growths);
        json_end_object(b->json);
        return;
    }
    out_printf("memory of %s", training ? "training" : "classify");
    for (int i = 0; i < 4; i++)
        out_printf("%s %s %.1f MB", i ? "," : "", m->name[i], 1e-6 * (double)m->peak[i]);
    out_printf("; in all %.1f MB", 1e-6 * (double)m->total);
    if (training) out_printf("; allocations after step 1: %lld", (long long)m->late_growths);
    out_text("\n");
}

static void report_head(const Bench *b, int64_t parameters) {
    const VitttConfig *m = b->model;
    int64_t macs = vittt_macs(m);
    if (b->json) {
        json_pair_string(b->json, "model", m->preset);
        json_pair_int(b->json, "parameters", parameters);
        json_pair_int(b->json, "image_size", m->image_size);
        json_pair_int(b->json, "macs", macs);
    } else {
        out_printf("%s at %lld px, %lld parameters, %.3f G multiply-adds an image, %s\n", m->preset,
                   (long long)m->image_size, (long long)parameters, 1e-9 * (double)macs,
                   dtype_name(b->act));
    }
    bench_report_ceilings(b);
}

static void report_step(const Bench *b, const PassResults *r) {
    if (b->json) {
        json_key(b->json, "step");
        json_begin_object(b->json);
    }
    report_head(b, r->parameters);
    for (int i = 0; i < r->count; i++) pass_report(b, &r->pass[i]);
    pass_report_memory(b, "memory_classify", &r->classify, false);
    pass_report_memory(b, "memory", &r->train, true);
    if (b->json) json_end_object(b->json);
}

Status bench_step(Bench *b) {
    PassResults r = {.count = 0};
    TRY(status_context(bench_classify(b, &r), "classify pass"));
    TRY(status_context(bench_train(b, &r), "training pass"));
    /* Last, on the other device: the ceilings must not count in the memory of the step. */
    TRY(bench_ceilings(b));
    report_step(b, &r);
    return STATUS_OK;
}
