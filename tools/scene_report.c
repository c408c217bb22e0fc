/* The report of `ttv data check` on scenes, as text and as JSON. */
#include <math.h>

#include "core/file.h"
#include "tools/cli.h"
#include "tools/scene_check.h"

enum { NAME_BYTES = 400 };

static void print_count(const char *what, int64_t n) {
    if (n > 0) out_printf("  %-10lld %s\n", (long long)n, what);
}

static double field_of_view(const SceneFrame *f, const SceneReport *r) {
    double width = f->width > 0 ? f->width : (double)r->width;
    return 2 * atan(0.5 * width / f->fx) * 180 / M_PI;
}

static void print_sizes(const SceneCheck *c) {
    int64_t low[2] = {0, 0}, high[2] = {0, 0};
    double narrow = 0, wide = 0;
    for (int64_t i = 0; i < scene_set_count(c->set); i++) {
        const SceneReport *r = &c->reports[i];
        if (r->width == 0) continue;
        double view = field_of_view(&scene_set_at(c->set, i)->frames[0], r);
        bool first = low[0] == 0;
        if (first || r->width < low[0]) low[0] = r->width;
        if (first || r->height < low[1]) low[1] = r->height;
        if (r->width > high[0]) high[0] = r->width;
        if (r->height > high[1]) high[1] = r->height;
        if (first || view < narrow) narrow = view;
        if (first || view > wide) wide = view;
    }
    if (low[0] == 0) return;
    out_printf("  pictures %lldx%lld", (long long)low[0], (long long)low[1]);
    if (low[0] != high[0] || low[1] != high[1])
        out_printf(" to %lldx%lld", (long long)high[0], (long long)high[1]);
    out_printf(", %.0f to %.0f degrees wide\n", narrow, wide);
}

void scene_check_print(const SceneCheck *c, int64_t most) {
    int64_t scenes = scene_set_count(c->set);
    out_printf("posed scenes: %lld (%lld usable), %lld cameras, %lld pictures, %.1f MB\n",
               (long long)scenes, (long long)(scenes - c->unusable), (long long)c->cameras,
               (long long)c->pictures, 1e-6 * (double)c->bytes);
    print_sizes(c);
    print_count("cameras without a picture (normal: videos vanish)", c->missing);
    print_count("pictures without a camera", c->extra);
    print_count("other files", scene_set_other_files(c->set));
    print_count("corrupt pictures", c->corrupt);
    print_count("scenes whose cameras all stand at one place", c->still);
    out_printf("  poses as world-to-camera: %lld scenes fit, %lld look inverted, %lld open\n",
               (long long)c->fits, (long long)c->inverted, (long long)c->open);
    if (c->faults.count == 0) {
        out_printf("clean\n");
        return;
    }
    findings_print(&c->faults, most);
    out_printf("%lld fault%s\n", (long long)c->faults.count, c->faults.count == 1 ? "" : "s");
}

static void json_scene(const SceneCheck *c, int64_t i, JsonWriter *w) {
    static const char *const verdicts[] = {"unknown", "fits", "inverted"};
    const Scene *s = scene_set_at(c->set, i);
    const SceneReport *r = &c->reports[i];
    json_begin_object(w);
    json_pair_string(w, "scene", s->name);
    json_pair_string(w, "split", s->split);
    json_pair_string(w, "format", scene_format_name(s->format));
    json_pair_bool(w, "usable", scene_usable(s));
    json_pair_int(w, "cameras", s->count);
    json_pair_int(w, "pictures", s->count - s->missing);
    json_pair_int(w, "missing", s->missing);
    json_pair_int(w, "extra", s->extra);
    json_pair_int(w, "corrupt", r->corrupt);
    json_pair_int(w, "faults", s->fault_count);
    json_pair_int(w, "width", r->width);
    json_pair_int(w, "height", r->height);
    json_pair_number(w, "travel", r->travel);
    json_pair_number(w, "turn_degrees", r->turn);
    json_pair_string(w, "pose", verdicts[r->pose.verdict]);
    json_pair_number(w, "pose_fit", r->pose.fit);
    json_pair_number(w, "pose_fit_inverted", r->pose.inverted_fit);
    json_end_object(w);
}

Status scene_check_json(const SceneCheck *c, JsonWriter *w) {
    json_begin_object(w);
    json_pair_string(w, "root", c->root);
    json_pair_string(w, "kind", "posed scenes");
    json_pair_int(w, "scene_count", scene_set_count(c->set));
    json_pair_int(w, "usable", scene_set_count(c->set) - c->unusable);
    json_pair_int(w, "cameras", c->cameras);
    json_pair_int(w, "pictures", c->pictures);
    json_pair_int(w, "missing", c->missing);
    json_pair_int(w, "extra", c->extra);
    json_pair_int(w, "corrupt", c->corrupt);
    json_pair_int(w, "other_files", scene_set_other_files(c->set));
    json_key(w, "scenes");
    json_begin_array(w);
    for (int64_t i = 0; i < scene_set_count(c->set); i++) json_scene(c, i, w);
    json_end_array(w);
    findings_json(&c->faults, w);
    json_pair_bool(w, "clean", c->faults.count == 0);
    json_end_object(w);
    return w->status;
}
