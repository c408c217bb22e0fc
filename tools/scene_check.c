#include "tools/scene_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "tools/cli.h"
#include "tools/parallel.h"

/* ---- one scene ---- */

/* A picture that cannot be used is a result; running out of memory is not. */
static Status check_picture(SceneCheck *c, int64_t scene, int64_t frame) {
    SceneReport *r = &c->reports[scene];
    ImageOptions options = image_options_default();
    ImageInfo info;
    Image image = {0};
    const void *bytes;
    size_t size;
    bool owned = false;
    char name[800];
    scene_frame_name(c->set, scene, frame, name, sizeof name);
    Status s = scene_bytes(c->set, scene, frame, &bytes, &size, &owned);
    if (s == STATUS_OK) {
        r->bytes += (int64_t)size;
        s = image_decode(bytes, size, name, &options, &image, &info);
        if (owned) mem_free((void *)(uintptr_t)bytes);
    }
    if (s == STATUS_MEMORY) return s;
    if (s != STATUS_OK) {
        r->corrupt++;
        return mem_string(&r->errors[frame], status_message());
    }
    if (r->width == 0) {
        r->width = image.width;
        r->height = image.height;
    } else if (image.width != r->width || image.height != r->height) {
        if (r->other_sizes++ == 0) r->other_frame = frame;
    }
    image_free(&image);
    return STATUS_OK;
}

static void measure_motion(const Scene *s, SceneReport *r) {
    ViewCamera first, last, c;
    double widest = 0, cosine = -1;
    view_camera_pose(&first, s->frames[0].w2c);
    view_camera_pose(&last, s->frames[s->count - 1].w2c);
    for (int64_t i = 0; i < s->count; i++) {
        double d = 0;
        view_camera_pose(&c, s->frames[i].w2c);
        for (int k = 0; k < 3; k++) d += pow(c.c2w[4 * k + 3] - first.c2w[4 * k + 3], 2);
        widest = fmax(widest, sqrt(d));
    }
    for (int k = 0; k < 12; k++)
        if (k % 4 != 3) cosine += first.c2w[k] * last.c2w[k];
    for (int k = 0; k < 3; k++) r->travel += pow(last.c2w[4 * k + 3] - first.c2w[4 * k + 3], 2);
    r->travel = sqrt(r->travel);
    r->turn = acos(fmax(fmin(0.5 * cosine, 1), -1)) * 180 / M_PI;
    r->still = widest < 1e-9;
}

static Status check_scene(void *user, int64_t i) {
    SceneCheck *c = user;
    const Scene *s = scene_set_at(c->set, i);
    SceneReport *r = &c->reports[i];
    void *block;
    TRY(mem_alloc(&block, s->count, sizeof(char *), "results of the check"));
    r->errors = block;
    for (int64_t k = 0; k < s->count; k++)
        if (s->frames[k].image >= 0) TRY(check_picture(c, i, k));
    if (s->count > 0) measure_motion(s, r);
    if (!scene_usable(s) || r->corrupt > 0) return STATUS_OK;
    return pose_check(c->set, i, &r->pose);
}

/* ---- findings ---- */

static void find_faults(SceneCheck *c, int64_t i) {
    const Scene *s = scene_set_at(c->set, i);
    const SceneReport *r = &c->reports[i];
    char reason[1024];
    for (int64_t k = 0; k < s->fault_count && k < SCENE_FAULTS_KEPT; k++)
        findings_add(&c->faults, "%s", s->faults[k]);
    if (s->fault_count > SCENE_FAULTS_KEPT)
        findings_add(&c->faults, "%s: %lld more faults", s->camera_file,
                     (long long)(s->fault_count - SCENE_FAULTS_KEPT));
    if (s->fault_count == 0 && !scene_usable(s))
        findings_add(&c->faults, "%s", scene_reason(s, reason, sizeof reason));
    for (int64_t k = 0; k < s->count; k++)
        if (r->errors[k]) findings_add(&c->faults, "corrupt: %s", r->errors[k]);
    if (r->other_sizes > 0) {
        scene_frame_name(c->set, i, r->other_frame, reason, sizeof reason);
        findings_add(&c->faults, "%s: %lld pictures are not %lldx%lld like the first: %s%s",
                     s->camera_file, (long long)r->other_sizes, (long long)r->width,
                     (long long)r->height, reason, r->other_sizes > 1 ? ", ..." : "");
    }
    if (r->pose.verdict == POSE_INVERTED)
        findings_add(&c->faults,
                     "%s: the matrices look like camera-to-world; world-to-camera is expected "
                     "(corners found again: %.2f as they are, %.2f inverted)",
                     s->camera_file, r->pose.fit, r->pose.inverted_fit);
}

static void add_up(SceneCheck *c, int64_t i) {
    const Scene *s = scene_set_at(c->set, i);
    const SceneReport *r = &c->reports[i];
    c->cameras += s->count;
    c->pictures += s->count - s->missing;
    c->missing += s->missing;
    c->extra += s->extra;
    c->corrupt += r->corrupt;
    c->bytes += r->bytes;
    c->unusable += !scene_usable(s);
    c->still += r->still && s->count > 1;
    if (!scene_usable(s)) return;
    c->fits += r->pose.verdict == POSE_FITS;
    c->inverted += r->pose.verdict == POSE_INVERTED;
    c->open += r->pose.verdict == POSE_UNKNOWN;
}

static void show_progress(void *user, int64_t done) {
    const SceneCheck *c = user;
    progress_line(10, "%lld of %lld scenes", (long long)done, (long long)scene_set_count(c->set));
}

/* ---- the picture ---- */

static Status parse_pair(const char *text, const Scene *s, int64_t frames[2]) {
    char rest;
    long long a, b;
    if (sscanf(text, "%lld,%lld%c", &a, &b, &rest) != 2)
        return status_set(STATUS_USAGE, "--pair '%s': two frame numbers A,B are expected", text);
    if (a < 0 || b < 0 || a >= s->count || b >= s->count)
        return status_set(STATUS_USAGE, "--pair %s: scene %s has frames 0 to %lld", text, s->name,
                          (long long)(s->count - 1));
    frames[0] = a;
    frames[1] = b;
    return STATUS_OK;
}

static Status draw_pair(const SceneCheck *c, const SceneCheckOptions *o) {
    int64_t scene = 0, frames[2], count = scene_set_count(c->set);
    if (*o->scene) {
        scene = scene_set_find(c->set, o->scene);
        if (scene < 0) return status_set(STATUS_USAGE, "--scene %s: no such scene", o->scene);
    } else {
        while (scene < count && !scene_usable(scene_set_at(c->set, scene))) scene++;
    }
    if (scene == count || !pose_choose_pair(scene_set_at(c->set, scene), frames))
        return status_set(STATUS_DATA, "no scene with two pictures to draw a pair of");
    if (*o->pair) TRY(parse_pair(o->pair, scene_set_at(c->set, scene), frames));
    TRY(pose_picture(c->set, scene, frames, o->epipolar));
    note("%s: frames %lld and %lld of scene %s: corners, their epipolar lines, best places",
         o->epipolar, (long long)frames[0], (long long)frames[1],
         scene_set_at(c->set, scene)->name);
    return STATUS_OK;
}

/* ---- the command ---- */

static Status check(SceneCheck *c, const SceneCheckOptions *o) {
    void *block;
    TRY(scene_set_open(c->root, o->split, &c->set));
    int64_t count = scene_set_count(c->set);
    TRY(mem_alloc(&block, count, sizeof(SceneReport), "results of the check"));
    c->reports = block;
    TRY(parallel_for(count, o->threads, check_scene, show_progress, c));
    progress_clear();
    for (int64_t i = 0; i < count; i++) {
        find_faults(c, i);
        add_up(c, i);
    }
    TRY(c->faults.status);
    return *o->epipolar ? draw_pair(c, o) : STATUS_OK;
}

static Status report(const SceneCheck *c, const SceneCheckOptions *o) {
    if (!common.json) {
        scene_check_print(c, o->list);
        return STATUS_OK;
    }
    JsonWriter w;
    json_writer_init(&w);
    return out_json(&w, scene_check_json(c, &w));
}

static void check_free(SceneCheck *c) {
    for (int64_t i = 0; c->reports && i < scene_set_count(c->set); i++) {
        for (int64_t k = 0; c->reports[i].errors && k < scene_set_at(c->set, i)->count; k++)
            mem_free(c->reports[i].errors[k]);
        mem_free(c->reports[i].errors);
    }
    mem_free(c->reports);
    scene_set_close(c->set);
    findings_free(&c->faults);
}

int scene_check_run(const char *root, const SceneCheckOptions *o) {
    SceneCheck c = {.root = root};
    Status s = check(&c, o);
    progress_end();
    if (s == STATUS_OK) s = report(&c, o);
    int code = s != STATUS_OK ? cli_fail(s) : c.faults.count > 0 ? EXIT_NEGATIVE : 0;
    check_free(&c);
    return code;
}
