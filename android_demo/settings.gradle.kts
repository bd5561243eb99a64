// For Android Studio, beside the build by Maven and tools/build_apk, which is the one that is tested: see README.md.
pluginManagement { repositories { google(); mavenCentral(); gradlePluginPortal() } }
dependencyResolutionManagement { repositories { google(); mavenCentral() } }
rootProject.name = "mien-android-demo"
include("client", "app")
