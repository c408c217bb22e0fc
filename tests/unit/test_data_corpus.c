/* The shared decoder corpus (671 files) against its manifest: Pillow's verdicts and mean colours,
 * libjpeg-turbo's exact pixels. Read straight out of its tar. Skipped aloud where ../shared is
 * absent. */
#include "data_support.h"

#include "datasets/tar.h"

enum { COLUMNS = 11, MAX_FILES = 2000 };

typedef struct Line {
    char *file, *header, *reference, *pillow, *mean, *pnm_sha256;
} Line;

static char *manifest;
static Line lines[MAX_FILES];
static int line_count;
static Tar *corpus;

static const TarMember *member(const char *name) {
    for (int64_t i = 0; i < tar_count(corpus); i++) {
        const char *have = tar_at(corpus, i)->name;
        size_t extra = strlen(have) - strlen(name);
        if (strlen(have) >= strlen(name) && strcmp(have + extra, name) == 0 &&
            (extra == 0 || have[extra - 1] == '/')) {
            return tar_at(corpus, i);
        }
    }
    return NULL;
}

static int open_corpus(void **state) {
    (void)state;
    size_t size;
    const char *path = shared_file("data/decoder-corpus/manifest.tsv");
    if (path == NULL) return 0;
    read_whole(path, &manifest, &size);
    char *save = NULL, *v[COLUMNS + 1];
    strtok_r(manifest, "\n", &save); /* heading */
    for (char *l; (l = strtok_r(NULL, "\n", &save)) != NULL && line_count < MAX_FILES;) {
        assert_true(split_tabs(l, v, COLUMNS + 1) >= 10);
        lines[line_count++] = (Line){v[0], v[4], v[5], v[6], v[7], v[9]};
    }
    assert_ok(tar_open(shared_file("data/decoder-corpus/decoder-corpus.tar"), &corpus));
    return 0;
}

static int close_corpus(void **state) {
    (void)state;
    tar_close(corpus);
    mem_free(manifest);
    return 0;
}

static int starts(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* Pillow's 16-bit grey is mode I, and its RGB conversion clips instead of scaling: no mean is
 * given. */
static int is_grey_16(const Line *l) {
    return starts(l->pillow, "ok I ");
}

static void check_mean(const Line *l, const Image *image) {
    int want[3];
    double sum[3] = {0};
    if (sscanf(l->mean, "%d,%d,%d", &want[0], &want[1], &want[2]) != 3) {
        assert_true(is_grey_16(l));
        return;
    }
    int64_t pixels = image->width * image->height;
    for (int64_t i = 0; i < pixels * 3; i++) sum[i % 3] += image->pixels[i];
    for (int c = 0; c < 3; c++) {
        double mean = sum[c] / (double)pixels;
        if (mean < want[c] - 2 || mean > want[c] + 2) {
            fail_msg("%s: mean of channel %d is %.1f, Pillow says %d", l->file, c, mean, want[c]);
        }
    }
}

static Status decode(const Line *l, bool strict, bool plausible, Image *image) {
    ImageOptions o = image_options_default();
    o.strict = strict;
    o.check_plausible = plausible;
    const TarMember *m = member(l->file);
    if (m == NULL) fail_msg("%s is not in the tar", l->file);
    double start = seconds_now();
    Status s = image_decode(m->data, m->size, l->file, &o, image, NULL);
    double took = seconds_now() - start;
    if (took > 2.0) fail_msg("%s took %.1f s", l->file, took);
    if (s != STATUS_OK) {
        assert_int_equal(s, STATUS_DATA);
        assert_null(image->pixels);
        assert_true(starts(status_message(), l->file));
    }
    return s;
}

/* What Pillow opens, the lenient decoder opens, with the same colours. */
static void lenient_follows_pillow(void **state) {
    (void)state;
    int opened = 0, implausible = 0;
    if (corpus == NULL) skip();
    for (int i = 0; i < line_count; i++) {
        Image image;
        Status s = decode(&lines[i], false, true, &image);
        if (s != STATUS_OK && starts(lines[i].file, "jpeg_corrupt/") &&
            strstr(status_message(), "too many for a file") != NULL) {
            /* Fuzzer finds that claim large sizes in a few hundred bytes; Pillow fills them with
             * grey. */
            s = decode(&lines[i], false, false, &image);
            implausible++;
        }
        if (s == STATUS_OK && starts(lines[i].pillow, "ok")) {
            check_mean(&lines[i], &image);
            opened++;
        } else if (starts(lines[i].pillow, "ok")) {
            fail_msg("Pillow decodes it: %s", status_message());
        }
        image_free(&image);
    }
    printf("%d files as Pillow has them, of %d; %d fuzzer finds are refused as implausible\n",
           opened, line_count, implausible);
    assert_true(opened >= 371);
}

/* Pillow takes these, strict decoding does not: their data are damaged (a checksum or the
 * entropy-coded segments), Pillow only does not look. */
static int is_damaged(const Line *l) {
    static const char *const damaged[] = {
        "png_corrupt/suite_xcsn0g01.png",         /* CRC of IDAT */
        "png_corrupt/libpng_crash_badcrc.png",    /* CRC of IDAT */
        "png_corrupt/libpng_crash_huge_IDAT.png", /* IDAT longer than the file */
        "png_odd/imgpng_x_interlaced_chck.png",   /* CRC of IDAT */
        "jpeg/jd_partial_progressive.jpg",        /* scans end early */
        "jpeg/jd_progressive-missing-dc.jpg",     /* no DC scan */
    };
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        if (strcmp(l->file, damaged[i]) == 0) return 1;
    }
    return starts(l->file, "jpeg_corrupt/");
}

static void strict_takes_whole_files(void **state) {
    (void)state;
    if (corpus == NULL) skip();
    int refused = 0;
    for (int i = 0; i < line_count; i++) {
        Image image;
        const Line *l = &lines[i];
        Status s = decode(l, true, true, &image);
        if (s == STATUS_OK && starts(l->pillow, "ok")) check_mean(l, &image);
        if (s != STATUS_OK && starts(l->pillow, "ok")) {
            if (!is_damaged(l)) fail_msg("refused: %s", status_message());
            refused++;
        }
        if (s == STATUS_OK && starts(l->pillow, "fail")) {
            printf("beyond Pillow: %s (%s; %s)\n", l->file, l->reference, l->pillow);
        }
        image_free(&image);
    }
    printf("%d damaged files that Pillow takes were refused\n", refused);
}

/* As djpeg -pnm writes it: grey stays grey. */
static void write_pnm(const char *path, const Image *image, int grey) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fprintf(f, "P%d\n%d %d\n255\n", grey ? 5 : 6, (int)image->width, (int)image->height);
    int64_t pixels = image->width * image->height;
    for (int64_t i = 0; i < pixels && grey; i++) fputc(image->pixels[3 * i], f);
    if (!grey) assert_int_equal(fwrite(image->pixels, 3, (size_t)pixels, f), pixels);
    assert_int_equal(fclose(f), 0);
}

/* Pixels are those of libjpeg-turbo's djpeg, to the bit. CMYK is left out: djpeg's RGB of it is its
 * own. */
static void jpeg_equals_djpeg(void **state) {
    (void)state;
    char root[256], path[400], line[600];
    FILE *list;
    int count = 0, checked = 0;
    if (corpus == NULL) skip();
    make_temp(root);
    snprintf(path, sizeof path, "%s/list", root);
    list = fopen(path, "w");
    assert_non_null(list);
    for (int i = 0; i < line_count; i++) {
        Image image;
        const Line *l = &lines[i];
        if (!starts(l->file, "jpeg") || strlen(l->pnm_sha256) != 64) continue;
        if (strstr(l->header, "nc4") != NULL) continue;
        assert_ok(decode(l, false, false, &image));
        snprintf(path, sizeof path, "%s/%d", root, i);
        write_pnm(path, &image, strstr(l->header, "nc1") != NULL);
        fprintf(list, "%s  %s\n", l->pnm_sha256, path);
        image_free(&image);
        count++;
    }
    fclose(list);
    snprintf(line, sizeof line, "sha256sum --check '%s/list'", root);
    FILE *check = popen(line, "r");
    assert_non_null(check);
    while (fgets(line, sizeof line, check) != NULL) {
        int i = -1;
        if (strstr(line, ": OK") != NULL)
            checked++;
        else if (sscanf(strrchr(line, '/') + 1, "%d", &i) == 1)
            printf("differs: %s\n", lines[i].file);
    }
    pclose(check);
    remove_tree(root);
    printf("%d of %d JPEG files are djpeg's to the bit\n", checked, count);
    assert_true(count >= 70);
    assert_int_equal(checked, count);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lenient_follows_pillow),
        cmocka_unit_test(strict_takes_whole_files),
        cmocka_unit_test(jpeg_equals_djpeg),
    };
    return cmocka_run_group_tests(tests, open_corpus, close_corpus);
}
