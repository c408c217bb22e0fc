/* The report of `ttv data check`, as text and as JSON. */
#include "tools/data_check.h"

#include <string.h>

#include "core/file.h"
#include "tools/cli.h"

enum { NAME_BYTES = 400 };

static const char *split_title(const SplitScan *s) {
    return *s->name ? s->name : "(root)";
}

static const char *class_text(const SplitScan *s, int64_t c, char out[NAME_BYTES]) {
    return text_printable(s->classes.names[c], out, NAME_BYTES);
}

/* ---- text ---- */

static void print_count(const char *what, int64_t n) {
    if (n > 0) out_printf("  %-10lld %s\n", (long long)n, what);
}

enum { IMAGENET_CLASSES = 1000, IMAGENET_TRAIN = 1281167, IMAGENET_VAL = 50000 };

/* A thousand folders called n01440764 and so on. */
static bool is_imagenet(const SplitScan *s) {
    if (s->classes.count != IMAGENET_CLASSES) return false;
    for (int64_t i = 0; i < s->classes.count; i++) {
        const char *name = s->classes.names[i];
        if (name[0] != 'n' || strlen(name) != 9 || strspn(name + 1, "0123456789") != 8)
            return false;
    }
    return true;
}

/* A copy that is not whole gives other scores than the published ones. */
static void print_imagenet(const SplitScan *s) {
    const bool train = strcmp(s->name, "train") == 0;
    if (!is_imagenet(s) || (!train && strncmp(s->name, "val", 3) != 0)) return;
    const long long whole = train ? IMAGENET_TRAIN : IMAGENET_VAL;
    if (s->count == whole)
        out_printf("  ImageNet-1k, all %lld images of the split\n", whole);
    else
        out_printf("  ImageNet-1k's classes, but the whole split has %lld images\n", whole);
}

static void print_split(const SplitScan *s) {
    char fewest[NAME_BYTES], most[NAME_BYTES];
    out_printf("%s: %lld images, %lld class%s, %.1f MB\n", split_title(s), (long long)s->count,
               (long long)s->classes.count, s->classes.count == 1 ? "" : "es",
               1e-6 * (double)s->bytes);
    print_imagenet(s);
    if (s->classes.count > 0 && s->per_class) {
        int64_t low = s->per_class[s->fewest], high = s->per_class[s->most];
        if (low == high)
            out_printf("  images per class: %lld each\n", (long long)low);
        else
            out_printf("  images per class: %lld ('%s') to %lld ('%s')\n", (long long)low,
                       class_text(s, s->fewest, fewest), (long long)high,
                       class_text(s, s->most, most));
    }
    if (s->count > s->corrupt)
        out_printf(
            "  width %lld, %lld, %lld, height %lld, %lld, %lld (smallest, median, largest)\n",
            (long long)s->width.min, (long long)s->width.median, (long long)s->width.max,
            (long long)s->height.min, (long long)s->height.median, (long long)s->height.max);
    print_count("JPEG", s->jpeg);
    print_count("PNG", s->png);
    print_count("in colour", s->rgb);
    print_count("grey or palette", s->grey);
    print_count("CMYK or YCCK", s->cmyk);
    print_count("with alpha", s->alpha);
    print_count("of 16 bits", s->deep);
    print_count("progressive or interlaced", s->progressive);
    print_count("with an EXIF orientation other than 1 (ignored in training and evaluation)",
                s->tagged);
    print_count("hidden names passed over", s->report.hidden_skipped);
    print_count("other files passed over", s->report.other_files);
}

void data_check_print(const DataCheck *c, int64_t most) {
    out_path(c->root);
    out_text("\n");
    for (int i = 0; i < c->split_count; i++) print_split(&c->splits[i]);
    if (c->duplicates.within > 0)
        out_printf("  %-10lld repeated files within a split\n", (long long)c->duplicates.within);
    findings_print(&c->faults, most);
    if (c->faults.count == 0)
        out_text("clean: every file decodes\n");
    else
        out_printf("%lld fault%s\n", (long long)c->faults.count, c->faults.count == 1 ? "" : "s");
}

/* ---- JSON ---- */

static void json_spread(JsonWriter *w, const char *key, const Spread *s) {
    json_key(w, key);
    json_begin_object(w);
    json_pair_int(w, "min", s->min);
    json_pair_int(w, "median", s->median);
    json_pair_int(w, "max", s->max);
    json_end_object(w);
}

static void json_class(JsonWriter *w, const char *key, const SplitScan *s, int64_t c) {
    json_key(w, key);
    json_begin_object(w);
    json_pair_string(w, "class", s->classes.names[c]);
    json_pair_int(w, "images", s->per_class[c]);
    json_end_object(w);
}

static void json_modes(JsonWriter *w, const SplitScan *s) {
    json_key(w, "formats");
    json_begin_object(w);
    json_pair_int(w, "jpeg", s->jpeg);
    json_pair_int(w, "png", s->png);
    json_end_object(w);
    json_key(w, "modes");
    json_begin_object(w);
    json_pair_int(w, "rgb", s->rgb);
    json_pair_int(w, "grey_or_palette", s->grey);
    json_pair_int(w, "cmyk", s->cmyk);
    json_pair_int(w, "alpha", s->alpha);
    json_pair_int(w, "bits_16", s->deep);
    json_pair_int(w, "progressive_or_interlaced", s->progressive);
    json_end_object(w);
}

static void json_corrupt(JsonWriter *w, const SplitScan *s) {
    json_key(w, "corrupt");
    json_begin_array(w);
    for (int64_t i = 0; s->samples && i < s->count; i++) {
        if (!s->samples[i].error) continue;
        json_begin_object(w);
        json_pair_string(w, "path", dataset_name(s->dataset, i));
        json_pair_string(w, "error", s->samples[i].error);
        json_end_object(w);
    }
    json_end_array(w);
}

static void json_split(JsonWriter *w, const SplitScan *s) {
    json_begin_object(w);
    json_pair_string(w, "split", s->name);
    json_pair_int(w, "images", s->count);
    json_pair_int(w, "classes", s->classes.count);
    json_pair_int(w, "bytes", s->bytes);
    if (s->classes.count > 0 && s->per_class) {
        json_class(w, "fewest", s, s->fewest);
        json_class(w, "most", s, s->most);
    }
    json_key(w, "empty_classes");
    json_begin_array(w);
    for (int64_t c = 0; s->per_class && c < s->classes.count; c++)
        if (s->per_class[c] == 0) json_string(w, s->classes.names[c]);
    json_end_array(w);
    json_pair_int(w, "hidden_skipped", s->report.hidden_skipped);
    json_pair_int(w, "other_files", s->report.other_files);
    json_pair_int(w, "dangling_links", s->report.dangling_links);
    json_pair_int(w, "exif_tagged", s->tagged);
    json_modes(w, s);
    json_spread(w, "width", &s->width);
    json_spread(w, "height", &s->height);
    json_corrupt(w, s);
    json_end_object(w);
}

Status data_check_json(const DataCheck *c, JsonWriter *w) {
    json_begin_object(w);
    json_pair_string(w, "root", c->root);
    json_key(w, "splits");
    json_begin_array(w);
    for (int i = 0; i < c->split_count; i++) json_split(w, &c->splits[i]);
    json_end_array(w);
    json_key(w, "duplicates");
    json_begin_object(w);
    json_pair_int(w, "across_splits", c->duplicates.across);
    json_pair_int(w, "within_splits", c->duplicates.within);
    json_pair_int(w, "conflicting_labels", c->duplicates.conflicts);
    json_end_object(w);
    findings_json(&c->faults, w);
    json_pair_bool(w, "clean", c->faults.count == 0);
    json_end_object(w);
    return w->status;
}
